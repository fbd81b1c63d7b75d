"""Shared fits: one fit, of a regularisation path say, whose models serve many candidates."""
