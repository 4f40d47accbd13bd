"""The search for plans: first ones, rounds that improve them, bounds, and where it runs."""
