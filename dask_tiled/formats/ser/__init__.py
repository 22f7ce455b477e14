"""TIA series, ``.ser``, and the ``.emi`` beside them."""
