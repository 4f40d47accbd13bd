"""One entry per PyTorch op, by family."""
