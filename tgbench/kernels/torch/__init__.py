"""Kernels that are calls of PyTorch."""
