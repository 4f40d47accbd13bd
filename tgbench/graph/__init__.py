"""Graphs: the op table, nodes, rewrites, and the reference that computes them slowly."""
