"""The command line, its applications and the demo."""
