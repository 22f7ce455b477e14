"""File formats: one module or folder each, which reads headers and locates every byte."""
