"""One module or folder for each format: it reads headers and says where every byte lies."""
