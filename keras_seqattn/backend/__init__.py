"""What the backend of Keras does and Keras has no public name for."""
