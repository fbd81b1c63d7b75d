"""Linear models: from sums of products, or by passes over a loss."""
