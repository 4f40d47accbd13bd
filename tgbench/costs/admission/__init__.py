"""Kernels of the user's own: the task, the checks before one is taken, and those that were."""
