"""Measurements of samples of an array: bad pixels and disks."""
