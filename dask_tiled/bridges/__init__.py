"""Arrays in other packages."""
