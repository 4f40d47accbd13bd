"""Who has bytes, when, and where."""
