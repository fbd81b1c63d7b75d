"""What the joblib backend stands on: a call on its way, arguments shared, a batch on a worker."""
