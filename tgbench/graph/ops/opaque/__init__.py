"""Operators of PyTorch that are computed whole."""
