"""Early stopping of fits on validation rows, by the library of the model."""
