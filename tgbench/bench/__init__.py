"""Benches: each is a command, `python -m tgbench.bench.<name>`, that writes its raw samples."""
