"""Other systems, each in a process of its own, and how to talk with them."""
