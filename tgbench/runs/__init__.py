"""One run and the next: what changes, what is needed, what kind it is, and the log of them."""
