"""Functions of the active backend for which Keras has no public name."""
