"""Where graphs come from: PyTorch, and models written out here."""
