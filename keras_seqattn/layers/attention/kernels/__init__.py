"""The kernels of attention: ways to compute the same numbers."""
