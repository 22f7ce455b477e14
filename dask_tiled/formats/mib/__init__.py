"""Merlin and Medipix3: ``.mib`` files and their ``.hdr``."""
