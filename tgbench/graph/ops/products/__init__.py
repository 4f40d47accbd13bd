"""Matrix products, and Einstein sums made of them."""
