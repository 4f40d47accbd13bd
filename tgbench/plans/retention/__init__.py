"""What to keep between runs: a workload as tables, and what is best by them."""
