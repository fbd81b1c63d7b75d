"""Tests of differences between models, and what a comparison shows."""

import pickle
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from scipy import stats
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import RepeatedStratifiedKFold, ShuffleSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

from skfleet.model_selection import compare_models
from skfleet.model_selection._comparison._resampled_tests import compare_pairs, estimate_mean

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("on_cluster")

X, y = load_iris(return_X_y=True)
CV = RepeatedStratifiedKFold(n_splits=5, n_repeats=2, random_state=0)
MODELS = {
    "<dummy>": DummyClassifier(),
    "naive": GaussianNB(),
    "nearest": KNeighborsClassifier(3),
}


@pytest.fixture(scope="module")
def comparison(cluster_client):
    with cluster_client.as_current():
        return compare_models(MODELS, X, y, cv=CV, scoring=["accuracy", "neg_log_loss"])


def corrected_ttest(differences, n_train, n_test):
    """Return the statistic and its tail, as scikit-learn's example on grid searches does."""
    n = len(differences)
    corrected_variance = np.var(differences, ddof=1) * (1 / n + n_test / n_train)
    t_stat = np.mean(differences) / np.sqrt(corrected_variance)
    return t_stat, stats.t.sf(np.abs(t_stat), n - 1)


@pytest.mark.parametrize("metric", ["accuracy", "neg_log_loss"])
def test_differences_are_tested_as_in_the_example_of_scikit_learn(comparison, metric):
    frame = comparison.splits[comparison.splits.metric == metric]
    scores = {name: rows.score.to_numpy() for name, rows in frame.groupby("model")}
    pairs = comparison.p_values[comparison.p_values.metric == metric]
    assert len(pairs) == 3
    for pair in pairs.itertuples():
        differences = scores[pair.model_1] - scores[pair.model_2]
        t_stat, tail = corrected_ttest(differences, n_train=120, n_test=30)
        assert pair.difference == pytest.approx(differences.mean())
        assert (pair.t, pair.p_value) == pytest.approx((t_stat, 2 * tail))
        low, high = stats.t.interval(0.95, len(differences) - 1, pair.difference, pair.stderr)
        assert (pair.ci_low, pair.ci_high) == pytest.approx((low, high))


def test_the_better_model_of_a_pair_comes_first(comparison):
    ranks = {name: n for n, name in enumerate(comparison.results.index)}
    assert all(
        ranks[pair.model_1] < ranks[pair.model_2] for pair in comparison.p_values.itertuples()
    )
    first = comparison.p_values[comparison.p_values.metric == comparison.metric]
    assert (first.difference >= 0).all()


def test_sizes_of_unequal_splits_are_added():
    rows = np.arange(150)
    splits = [(rows[:100], rows[100:]), (rows[50:], rows[:20]), (rows[::2], rows[1:11])]
    comparison = compare_models({"naive": GaussianNB()}, X, y, cv=splits)
    scores = comparison.splits.score.to_numpy()
    expected = np.sqrt(scores.var(ddof=1) * (1 / 3 + 80 / 275))
    assert comparison.results.stderr_test_score.item() == pytest.approx(expected)


def test_holms_correction():
    rng = np.random.default_rng(0)
    scores = pd.DataFrame(rng.normal(size=(30, 4)) + [0, 0.5, 1, 2], columns=list("abcd"))
    scores["nan"] = np.nan
    pairs = compare_pairs(scores, 0.1)
    pairs = pairs[~pairs.p_value.isna()]
    assert len(pairs) == 6
    # the largest of the products up to each rank
    for p, corrected in zip(pairs.p_value, pairs.p_value_holm, strict=True):
        smaller = sorted(pairs.p_value)[: int((pairs.p_value <= p).sum())]
        assert corrected == pytest.approx(
            min(1, max((6 - rank) * value for rank, value in enumerate(smaller)))
        )


def test_differences_without_spread():
    scores = pd.DataFrame({"a": [0.5] * 4, "same": [0.5] * 4, "less": [0.25] * 4})
    pairs = compare_pairs(scores, 0.25).set_index(["model_1", "model_2"])
    assert pairs.loc[("a", "same"), ["t", "p_value"]].tolist() == [0, 1]
    assert pairs.loc[("a", "less"), ["t", "p_value"]].tolist() == [np.inf, 0]


def test_a_single_split_has_no_error():
    mean, stderr = estimate_mean(np.array([0.5]), 0.25)
    assert mean == 0.5
    assert np.isnan(stderr)
    split = ShuffleSplit(1, random_state=0)
    comparison = compare_models({"a": GaussianNB(), "b": DummyClassifier()}, X, y, cv=split)
    assert comparison.p_values.p_value.isna().all()
    assert "±" not in str(comparison)


def test_one_model_has_no_tests(comparison):
    alone = compare_models({"naive": GaussianNB()}, X, y, cv=CV)
    assert list(alone.p_values.columns) == list(comparison.p_values.columns)
    assert alone.p_values.empty
    assert "difference" not in str(alone)


class Cells(HTMLParser):
    """The texts of a table, row by row."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def handle_starttag(self, tag, attributes):
        self.rows += [[]] if tag == "tr" else []

    def handle_data(self, data):
        if self.rows:
            self.rows[-1].append(data)


def test_text_and_html_show_the_models_best_first(comparison):
    text = str(comparison)
    assert text.startswith("Comparison of 3 models on 10 splits, naive is best by accuracy\n")
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == list(comparison.results.index)
    cells = Cells()
    html = comparison._repr_html_()
    cells.feed(html)
    assert cells.rows[0][:4] == ["model", "accuracy", "neg_log_loss", "difference"]
    for row, line in zip(cells.rows[1:4], lines[2:5], strict=True):
        assert " ".join(" ".join(row).split()).startswith(" ".join(line.split())[:20])
    assert "&lt;dummy&gt;" in html


def test_failures_are_shown():
    models = {"bad": KNeighborsClassifier(-1), "naive": GaussianNB()}
    with pytest.warns(match="bad: 5 of 5 fits"):
        text = str(compare_models(models, X, y))
    assert "5 of 5" in next(line for line in text.splitlines() if line.startswith("bad"))


def test_picture(comparison):
    scores, differences = comparison.plot()
    names = [label.get_text() for label in scores.get_yticklabels()]
    assert names == list(comparison.results.index)
    assert scores.get_xlabel() == "accuracy"
    np.testing.assert_array_equal(
        [c.lines[0].get_xdata().item() for c in scores.containers],
        comparison.results.mean_test_accuracy,
    )
    best, second, _ = differences.containers
    assert best.lines[0].get_marker() == "*"
    low, high = second.lines[2][0].get_segments()[0][:, 0]
    pair = comparison.p_values.iloc[0]
    np.testing.assert_allclose([low, high], [-pair.ci_high, -pair.ci_low])
    other, _ = comparison.plot("neg_log_loss")
    assert other.get_xlabel() == "neg_log_loss"
    with pytest.raises(ValueError, match="scoring must be one of 'accuracy', 'neg_log_loss'"):
        comparison.plot("r2")
    pyplot.close("all")


def test_picture_of_one_model():
    alone = compare_models({"naive": GaussianNB()}, X, y)
    assert alone.plot().shape == (1,)
    pyplot.close("all")


def test_comparisons_can_be_pickled(comparison):
    copied = pickle.loads(pickle.dumps(comparison))
    assert str(copied) == str(comparison)
