"""Three adaptive searches on data of scikit-learn: digits, twice, and its own documentation.

Hyperband looks for a neural network that reads digits, and for a forest that grows from round to
round; ASHA for a pipeline that tells from a paragraph of scikit-learn's documentation which module
it is about. Run it with ``python examples/adaptive.py [PICTURE]``; it takes about a minute on two
cores, and draws the learning curves if matplotlib is installed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from scipy.stats import loguniform, randint
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils import all_estimators

from skfleet import Fleet
from skfleet.model_selection import ASHASearchCV, HyperbandSearchCV

MODULES = ("cluster", "decomposition", "ensemble", "linear_model", "preprocessing")


def paragraphs() -> tuple[list[str], np.ndarray]:
    """Return paragraphs of docstrings, and the modules that they are from."""
    texts, labels = [], []
    for _, kind in all_estimators():
        module = kind.__module__.split(".")[1]
        if module in MODULES:
            found = [part.strip() for part in (kind.__doc__ or "").split("\n\n")]
            found = [part for part in found if len(part) > 80]
            texts += found
            labels += [module] * len(found)
    return texts, np.array(labels)


def read_digits() -> Any:
    """Search for a network among 143, 81 calls of ``partial_fit`` at most for each."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X / 16, y, random_state=0, stratify=y)
    search = HyperbandSearchCV(
        MLPClassifier(random_state=0),
        {
            "hidden_layer_sizes": [(16,), (32,), (64,), (32, 32)],
            "alpha": loguniform(1e-6, 1e-1),
            "learning_rate_init": loguniform(1e-4, 1e-1),
            "batch_size": [32, 64, 128, 256],
        },
        max_iter=81,
        random_state=0,
        verbose=1,
    )
    told = search.metadata
    print(f"digits: {told['n_models']} models, {told['partial_fit_calls']} calls of partial_fit")
    search.fit(X_train, y_train)
    report(search, search.score(X_test, y_test))
    return search


def grow_forests() -> Any:
    """Search for a forest among 49, that have 27 trees at most."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    search = HyperbandSearchCV(
        RandomForestClassifier(random_state=0),
        {"max_features": randint(2, 32), "min_samples_leaf": randint(1, 9)},
        resource="n_estimators",
        max_iter=27,
        random_state=0,
    )
    print(
        f"\nforests: {search.metadata['n_models']}, {search.metadata['n_resources']} trees in all"
    )
    search.fit(X_train, y_train)
    report(search, search.score(X_test, y_test))
    return search


def read_docs() -> Any:
    """Search for a pipeline; its vectorizer is fitted once for all candidates that share it."""
    texts, labels = paragraphs()
    train, test, y_train, y_test = train_test_split(texts, labels, random_state=0, stratify=labels)
    search = ASHASearchCV(
        make_pipeline(TfidfVectorizer(sublinear_tf=True), SGDClassifier(random_state=0)),
        {
            "tfidfvectorizer__ngram_range": [(1, 1), (1, 2)],
            "sgdclassifier__alpha": loguniform(1e-6, 1e-2),
            "sgdclassifier__loss": ["hinge", "log_loss", "modified_huber"],
        },
        n_initial_parameters=30,
        max_iter=27,
        random_state=0,
        verbose=1,
    )
    print(f"\n{len(texts)} paragraphs: {search.metadata['partial_fit_calls']} calls or some more")
    search.fit(train, y_train)
    report(search, search.score(test, y_test))
    return search


def report(search: Any, score: float) -> None:
    """Print what came of a search."""
    done = search.metadata_
    amount = done.get("n_resources", done.get("partial_fit_calls"))
    print(f"  {amount} {search.resource} in {search.search_time_:.1f} s")
    print(f"  best {search.best_score_:.3f} on rows held out, {score:.3f} on rows never seen")
    for name, value in search.best_params_.items():
        print(f"    {name} = {value:.3g}" if isinstance(value, float) else f"    {name} = {value}")


def main() -> None:
    """Search three times, and draw what happened."""
    began = time.perf_counter()
    with Fleet():
        searches = [read_digits(), grow_forests(), read_docs()]
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    axes = searches[0].plot()
    picture = sys.argv[1] if len(sys.argv) > 1 else "adaptive.png"
    axes.figure.savefig(picture, dpi=120)
    print(f"learning curves: {picture}")


if __name__ == "__main__":
    main()
