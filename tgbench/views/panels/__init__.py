"""The interactive views of a notebook."""
