"""What is done with the tiles of a chunk: functions, folds, expressions."""
