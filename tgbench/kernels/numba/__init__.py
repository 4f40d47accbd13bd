"""Kernels compiled by numba, for few rows on the CPU."""
