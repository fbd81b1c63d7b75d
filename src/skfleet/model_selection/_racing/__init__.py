"""Racing over the splits of a search."""
