"""Many files converted in one run that can be repeated."""
