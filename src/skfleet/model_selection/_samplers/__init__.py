"""Samplers: where the candidates of a search come from."""
