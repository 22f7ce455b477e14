"""Folders of files: which datasets they hold, and a catalogue of them."""
