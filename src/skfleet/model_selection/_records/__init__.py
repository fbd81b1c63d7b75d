"""Checkpoints of searches, their keys, and the results of candidates."""
