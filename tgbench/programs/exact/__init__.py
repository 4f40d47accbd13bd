"""Which kernels give the same bits in every run."""
