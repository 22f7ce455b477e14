"""Changes of a module, one at a time, that its tests should notice: ``make mutants``."""
