"""Kernels of oneDNN, called directly."""
