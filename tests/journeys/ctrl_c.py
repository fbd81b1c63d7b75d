"""A search that is stopped by Ctrl-C in a terminal, and what it has found by then."""

import time

from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV


class SlowTree(DecisionTreeClassifier):
    """A tree that takes its time."""

    def fit(self, X, y):
        time.sleep(0.2)
        return super().fit(X, y)


if __name__ == "__main__":
    X, y = load_iris(return_X_y=True)
    grid = {"min_samples_leaf": list(range(1, 101))}
    search = GridSearchCV(SlowTree(random_state=0), grid, cv=3)
    with Fleet(n_workers=2):
        print("searching", flush=True)
        try:
            search.fit(X, y)
        except KeyboardInterrupt:
            scores = search.cv_results_["mean_test_score"]
            print("\nsome of 100 candidates were scored:", 0 < len(scores) < 100)
            print("the best of them:", search.best_params_)
            print("its score is the best:", search.best_score_ == scores.max())
            raise
