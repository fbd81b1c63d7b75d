"""Meta-estimators: parallel prediction, incremental training, blockwise ensembles."""
