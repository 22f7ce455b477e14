"""Streams of detectors, received by a process of its own and written to files that grow."""
