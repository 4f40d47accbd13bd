"""Which values to keep between runs: workloads, cost tables, and the searches over them."""
