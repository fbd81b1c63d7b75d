"""An adaptive search is killed in the middle, and goes on from its checkpoint in a new process."""

import subprocess
import sys
import time
from pathlib import Path

from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from skfleet import Fleet
from skfleet.model_selection import HyperbandSearchCV


class Learner(SGDClassifier):
    """Takes its time, and says when it has learned."""

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        time.sleep(0.02)
        with Path("calls.txt").open("a") as calls:
            calls.write("1\n")
        return super().partial_fit(X, y, classes, sample_weight)


def search(**params):
    X, y = load_digits(return_X_y=True)
    one = HyperbandSearchCV(
        Learner(random_state=0),
        {"alpha": loguniform(1e-6, 1e-1), "penalty": ["l2", "l1"]},
        max_iter=9,
        random_state=0,
        **params,
    )
    with Fleet(n_workers=2):
        return one.fit(X / 16, y)


def n_calls():
    return len(Path("calls.txt").read_text().split()) if Path("calls.txt").exists() else 0


if __name__ == "__main__":
    if "child" in sys.argv:
        search(checkpoint="record")
        sys.exit()
    with Path("first.log").open("w") as log:
        child = subprocess.Popen([sys.executable, __file__, "child"], stdout=log, stderr=log)
    while n_calls() < 20:
        time.sleep(0.01)
    child.kill()
    print("the first process ended with", child.wait())
    n_before = -1
    while n_before != n_calls():  # until its workers have seen it
        n_before = n_calls()
        time.sleep(3)
    print("its workers end without a traceback:", "Traceback" not in Path("first.log").read_text())

    resumed = search(checkpoint="record", verbose=1)
    n_planned, n_known = resumed.metadata["partial_fit_calls"], resumed.n_checkpoint_calls_
    print("some calls came from the checkpoint:", 0 < n_known <= n_before)
    # fewer where a model was recorded, and its score not yet
    print("only others were made:", 0 < n_calls() - n_before <= n_planned - n_known)
    whole = search()
    print("as if never killed:", resumed.best_params_ == whole.best_params_, end=", ")
    print((resumed.cv_results_["mean_test_score"] == whole.cv_results_["mean_test_score"]).all())
