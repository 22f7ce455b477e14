"""Files in the formats of others."""
