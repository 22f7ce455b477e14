"""Digital Micrograph: DM3, DM4 and DM5 tag files."""
