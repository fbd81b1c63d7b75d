"""Dispatch of a search's fits: from the calls of joblib to batches on workers."""
