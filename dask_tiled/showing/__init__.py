"""Pictures of arrays: what is drawn, and how."""
