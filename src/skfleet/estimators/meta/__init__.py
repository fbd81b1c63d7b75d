"""Estimators around another estimator."""
