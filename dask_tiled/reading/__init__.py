"""Read a box of a layout into memory: plan the bytes, fetch, decode, correct."""
