"""Gatan K2 in-situ sets."""
