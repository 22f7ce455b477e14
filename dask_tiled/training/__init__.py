"""Samples for training: .beton and tar files, batches."""
