"""k-means on few rows of this process: compiled iterations, with the answers of passes."""

import contextlib

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning

from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import KMeans
from skfleet.estimators.cluster import _compiled_lloyd, _init, _lloyd

X = make_blobs(3000, 4, centers=6, cluster_std=2.5, random_state=0)[0]
FAR = np.concatenate([X[:5], np.full((2, 4), 1e4)])  # no row is near to the last two


@contextlib.contextmanager
def _in_passes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_compiled_lloyd, "MAX_BYTES", 0)
        yield


@pytest.fixture
def calls(monkeypatch):
    """Return the rows of each call of the compiled iterations."""
    called, iterate = [], _compiled_lloyd.compiled_iterations

    def counted(block, *args):
        called.append(block.n_rows)
        return iterate(block, *args)

    monkeypatch.setattr(_lloyd, "compiled_iterations", counted)
    return called


@pytest.mark.parametrize("algorithm", ["auto", "lloyd"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{"tol": 0}, {"tol": 1e-2}, {"max_iter": 2}, {"init": FAR}, {"init": X[:1]}],
    ids=["to-the-end", "loose", "two-iterations", "empty-clusters", "one-cluster"],
)
def test_the_answers_are_those_of_passes(settings, weighted, offset, algorithm, calls):
    settings = {"init": X[:7], **settings}
    settings["init"] = settings["init"] + offset
    weight = np.random.default_rng(0).uniform(0, 3, len(X)) if weighted else None
    model = KMeans(len(settings["init"]), algorithm=algorithm, **settings)
    with counting() as compiled:
        got = model.fit(X + offset, sample_weight=weight)
    assert calls == [len(X)]
    answers = got.labels_, got.cluster_centers_, got.inertia_, got.n_iter_
    with _in_passes(), counting() as in_passes:
        want = model.fit(X + offset, sample_weight=weight)
    assert len(calls) == 1
    np.testing.assert_array_equal(answers[0], want.labels_)
    np.testing.assert_allclose(answers[1], want.cluster_centers_, rtol=1e-12, atol=1e-9)
    assert answers[2] == pytest.approx(want.inertia_, rel=1e-9)
    assert answers[3] == want.n_iter_
    assert compiled.passes == 1 + got.n_iter_ + 1
    if settings.get("init", X)[-1, 0] < offset + 1e4:  # else one more gives rows to the clusters
        assert compiled.passes == in_passes.passes


@pytest.mark.parametrize(
    "change",
    [
        lambda: config_context(deterministic=True),  # threads add in any order
        _in_passes,
    ],
    ids=["deterministic", "too-many-bytes"],
)
def test_other_fits_make_passes(change, calls):
    with change():
        KMeans(6, init=X[:6]).fit(X)
    assert calls == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_sparse_and_single_rows_too(index, dtype, calls):
    thin = sparse.csr_array(np.where(X > 1, X, 0).astype(dtype))
    thin.indices, thin.indptr = thin.indices.astype(index), thin.indptr.astype(index)
    for rows in (thin, thin.toarray()):
        calls.clear()
        model = KMeans(7, init=X[:7])
        got = model.fit(rows)
        assert calls == [len(X)]
        answers = got.labels_, got.cluster_centers_, got.inertia_, got.n_iter_
        with _in_passes():
            want = model.fit(rows)
        rtol = 1e-9 if dtype is np.float64 else 1e-4
        assert np.mean(answers[0] == want.labels_) >= 1 - rtol
        np.testing.assert_allclose(answers[1], want.cluster_centers_, rtol=rtol, atol=rtol)
        assert answers[1].dtype == want.cluster_centers_.dtype == dtype
        assert answers[2] == pytest.approx(want.inertia_, rel=rtol)
        if dtype is np.float64:
            assert answers[3] == want.n_iter_


def test_iterations_are_printed_pass_by_pass(calls, capsys):
    KMeans(6, init=X[:6], verbose=1).fit(X)
    assert "Iteration 1, inertia" in capsys.readouterr().out
    assert calls == []


def test_rows_without_weight_are_refused():
    with pytest.raises(ValueError, match="sample_weight"):
        KMeans(2, init=X[:2]).fit(X, sample_weight=np.zeros(len(X)))


def test_fewer_distinct_rows_than_clusters_are_one_warning_of_ours():
    few = np.repeat(X[:3], 10, axis=0)
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(3\)") as warned:
        KMeans(5, random_state=0).fit(few)
    assert len(warned) == 1


@pytest.mark.parametrize(("n_init", "n_starts"), [("auto", 1), (3, 3)])
def test_few_rows_are_started_from_as_often_as_n_init_says(n_init, n_starts, monkeypatch):
    started, fit = [], _init.SklearnKMeans.fit

    def counted(self, rows, *args, **kwargs):
        started.extend([self.n_init] if isinstance(self.init, str) else [])
        return fit(self, rows, *args, **kwargs)

    monkeypatch.setattr(_init.SklearnKMeans, "fit", counted)
    KMeans(6, n_init=n_init, random_state=0).fit(X)
    assert started == [1] * n_starts
