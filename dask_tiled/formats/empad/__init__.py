"""EMPAD: ``.raw`` scans and the ``.xml`` beside them."""
