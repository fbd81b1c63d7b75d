"""Calls of joblib by a search as tasks: in the order in which the data go through the files."""
