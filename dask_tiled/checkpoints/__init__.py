"""Long computations whose partial results are kept in a folder, so that they can be resumed."""
