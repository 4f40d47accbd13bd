"""Flat lists of bound calls, and what they leave behind."""
