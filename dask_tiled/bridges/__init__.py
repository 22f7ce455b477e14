"""Arrays in other packages, and parameters of other packages here."""
