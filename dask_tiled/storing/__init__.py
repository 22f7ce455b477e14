"""Where exports are written, on disk or in object stores: claim, put, commit."""
