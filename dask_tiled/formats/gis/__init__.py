"""GIS volumes: ``.ima`` and ``.dim``."""
