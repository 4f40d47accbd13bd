"""Every way to run a graph: which graph of those that compute the same, and by which kernels."""
