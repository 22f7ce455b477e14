"""From a box of a layout to pixels in memory: which bytes, fetched how, decoded, corrected."""
