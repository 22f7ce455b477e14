"""Where exports and checkpoints are written, on disk or in object stores: claim, put, commit."""
