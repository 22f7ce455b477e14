"""Samples for training: .beton files, tar files and batches."""
