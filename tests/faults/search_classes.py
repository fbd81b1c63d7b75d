"""Names of the classes of searches that are resumed."""

OF_SCIKIT_LEARN = [
    "GridSearchCV",
    "RandomizedSearchCV",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
]
ADAPTIVE = [
    "HyperbandSearchCV",
    "SuccessiveHalvingSearchCV",
    "ASHASearchCV",
    "IncrementalSearchCV",
    "InverseDecaySearchCV",
]
