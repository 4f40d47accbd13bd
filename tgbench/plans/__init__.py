"""What to retain and why: plans, their making, their reading, their search."""
