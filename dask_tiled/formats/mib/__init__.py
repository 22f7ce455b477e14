"""Merlin, ``.mib``: one file or a series, all counter depths."""
