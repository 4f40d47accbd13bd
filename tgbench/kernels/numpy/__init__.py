"""Kernels that are calls of NumPy."""
