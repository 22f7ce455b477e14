"""MRC: stacks, volumes and Direct Electron movies."""
