"""Shapes, charts and tables that know nothing of sessions."""
