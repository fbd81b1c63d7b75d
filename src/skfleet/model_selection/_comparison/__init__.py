"""Comparison of models on the same splits."""
