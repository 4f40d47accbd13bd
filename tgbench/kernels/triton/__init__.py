"""Kernels for GPUs, written in Triton's language; nothing here imports it before it is called."""
