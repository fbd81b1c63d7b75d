"""Splitters, and the rows of their splits."""
