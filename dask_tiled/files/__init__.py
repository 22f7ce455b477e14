"""Files on disk and behind URLs: paths, versions, and the folders that may be read."""
