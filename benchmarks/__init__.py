"""Benches: each is a command, `python -m benchmarks.<name>`, that writes its raw samples."""
