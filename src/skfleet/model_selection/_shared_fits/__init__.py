"""Shared fits: one fit that yields the models of many candidates, by kind of estimator."""
