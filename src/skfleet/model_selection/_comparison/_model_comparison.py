"""The result of a comparison of models: frames, texts and a picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from skfleet._display import count, html_table
from skfleet._optional_dependencies import check_extra
from skfleet._validation import check_option
from skfleet.model_selection._comparison._resampled_tests import (
    CONFIDENCE,
    compare_pairs,
    estimate_mean,
    t_quantile,
)


@dataclass(eq=False, repr=False)
class ModelComparison:
    """Scores of models on the same splits, and tests of their differences.

    Returned by :func:`compare_models`. As with searches, a higher score is better.

    Parameters
    ----------
    results : DataFrame of shape (n_models, n_columns)
        One row a model, by its name, the best first. Columns are named as in ``cv_results_``:
        ``mean_test_score`` and ``std_test_score``, or those with the name of each metric, and the
        seconds ``mean_fit_time`` and ``mean_score_time``. ``stderr_test_score`` is the standard
        error of the mean, corrected for training rows that splits have in common, and ``n_failed``
        the number of fits that failed.
    splits : DataFrame of shape (n_models * n_splits * n_metrics, n_columns)
        One row for each model, split and metric: ``model``, ``split``, ``metric``, ``score``,
        ``fit_time``, ``score_time``, ``error`` (of a fit that failed), and with
        ``return_estimator=True`` the ``best_params`` of a search.
    p_values : DataFrame of shape (n_pairs * n_metrics, 11)
        One row for each metric and pair of models: ``metric``, ``model_1`` (the better one by the
        metric that decides), ``model_2``, their mean ``difference``, its ``stderr`` and confidence
        interval of 95 % (``ci_low``, ``ci_high``), the statistic ``t``, the two-sided ``p_value``,
        and ``p_value_holm``, corrected for the number of pairs.
    metric : str
        The metric that decides; "score" where there is only one.
    best_name : str or None
        Name of the model with the highest mean score; None where none was scored on all splits.
    best_model : estimator object or None
        That model, as it was passed.
    estimators : dict of str -> list of estimators, default=None
        The fitted models of all splits, with ``return_estimator=True``.

    Attributes
    ----------
    best_estimator_ : estimator object
        The best model, fitted on all rows. Only with ``refit``.

    See Also
    --------
    compare_models : Compare models.

    Notes
    -----
    Scores of splits are not independent, because their training rows overlap. The variance of a
    mean over J splits is therefore that of the values times 1/J + n_test/n_train, in place of 1/J
    (Nadeau and Bengio, 2003, Inference for the generalization error, Machine Learning 52, pages
    239-281). The t-test has J - 1 degrees of freedom.

    Among many pairs a small p-value comes about by chance. ``p_value_holm`` may be compared with
    0.05 for all pairs at once (Holm, 1979, A simple sequentially rejective multiple test procedure,
    Scandinavian Journal of Statistics 6, pages 65-70). Confidence intervals are not corrected.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.dummy import DummyClassifier
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skfleet.model_selection import compare_models
    >>> X, y = load_iris(return_X_y=True)
    >>> models = {"most frequent": DummyClassifier(), "naive Bayes": GaussianNB()}
    >>> comparison = compare_models(models, X, y, cv=5)
    >>> comparison
    Comparison of 2 models on 5 splits, naive Bayes is best by score
                            score     difference p (Holm) ...
    naive Bayes    0.9533 ± 0.056 ...
    most frequent      0.3333 ± 0  -0.62 ± 0.056  6.5e-06 ...
    ± is half of a confidence interval of 95 %; difference and p are those to the first model
    """

    results: pd.DataFrame
    splits: pd.DataFrame
    p_values: pd.DataFrame
    metric: str
    best_name: str | None
    best_model: Any
    estimators: dict[str, list[Any]] | None = None
    _best_estimator: Any = field(default=None, init=False)

    @property
    def best_estimator_(self) -> Any:
        """The best model, fitted on all rows."""
        if self._best_estimator is None:
            raise AttributeError(
                "best_estimator_ must be asked for by refit. Got refit=False instead. Call "
                "compare_models with refit=True, or fit best_model."
            )
        return self._best_estimator

    def plot(self, scoring: str | None = None) -> np.ndarray:
        """Draw the mean scores with their confidence intervals, and the differences to the best.

        Needs matplotlib.

        Parameters
        ----------
        scoring : str, default=None
            Name of the metric; by default the one that decides.

        Returns
        -------
        axes : ndarray of matplotlib.axes.Axes of shape (2,)
            Scores, and differences. A single model has no differences, and the shape is (1,).

        Raises
        ------
        ImportError
            Without matplotlib.
        ValueError
            When there is no such score.
        """
        check_extra("plot()", "matplotlib", "plot")
        from matplotlib import pyplot

        metric = self.metric if scoring is None else scoring
        check_option("scoring", metric, metrics_of(self.splits))
        n_axes, names = min(2, len(self.results)), list(self.results.index)
        size = 5.5 * n_axes, 1.5 + 0.4 * len(names)
        _, (grid,) = pyplot.subplots(
            1, n_axes, figsize=size, layout="constrained", sharey=True, squeeze=False
        )
        panels = {metric: self._means(metric), f"difference to {names[0]}": self._gaps(metric)}
        for axes, (label, estimates) in zip(grid, panels.items(), strict=False):
            for row, (mean, margin) in enumerate(estimates):
                style = {"fmt": "o", "color": "C0", "capsize": 4}
                if names[row] == self.best_name:
                    style |= {"fmt": "*", "color": "C1", "markersize": 11}
                axes.errorbar(mean, row, xerr=margin, **style)
            axes.set_xlabel(label)
        grid[0].set_yticks(range(len(names)), names)
        grid[0].invert_yaxis()
        if n_axes > 1:
            grid[1].axvline(0, color="gray", linewidth=0.8, zorder=0)
        return grid

    def _means(self, metric: str) -> list[tuple[float, float]]:
        """Return the mean score of each model, and half of its confidence interval."""
        margins = t_quantile(self._n_splits) * self.results[f"stderr_test_{metric}"]
        return list(zip(self.results[f"mean_test_{metric}"], margins, strict=True))

    def _gaps(self, metric: str) -> list[tuple[float, float]]:
        """Return the difference of each model to the best, and half of its confidence interval."""
        pairs = self._pairs_with_best(metric)
        margins = (pairs["ci_high"] - pairs["ci_low"]) / 2
        return [(0.0, np.nan), *zip(-pairs["difference"], margins, strict=True)]

    def _pairs_with_best(self, metric: str) -> pd.DataFrame:
        """Return the tests of the first model against each of the following ones."""
        pairs = self.p_values
        return pairs[(pairs["metric"] == metric) & (pairs["model_1"] == self.results.index[0])]

    @property
    def _n_splits(self) -> int:
        return int(self.splits["split"].nunique())

    def _table(self) -> pd.DataFrame:
        """Return the results as texts."""
        results, metrics = self.results, metrics_of(self.splits)
        table = pd.DataFrame(
            {metric: [_text(*mean, 4) for mean in self._means(metric)] for metric in metrics},
            index=list(results.index),
        )
        if len(table) > 1:
            pairs = self._pairs_with_best(self.metric)
            table["difference"] = ["", *(_text(*gap, 2) for gap in self._gaps(self.metric)[1:])]
            table["p (Holm)"] = ["", *(f"{p:.2g}" for p in pairs["p_value_holm"])]
        for phase in ("fit", "score"):
            table[f"{phase} time"] = [f"{time:.2g} s" for time in results[f"mean_{phase}_time"]]
        if results["n_failed"].any():
            table["failed"] = [f"{n} of {self._n_splits}" if n else "" for n in results["n_failed"]]
        return table

    @property
    def _title(self) -> str:
        sizes = f"{count(len(self.results), 'model')} on {count(self._n_splits, 'split')}"
        best = "none is scored on all" if self.best_name is None else f"{self.best_name} is best"
        return f"Comparison of {sizes}, {best} by {self.metric}"

    @property
    def _legend(self) -> str:
        parts = []
        if self._n_splits > 1:
            parts.append(f"± is half of a confidence interval of {100 * CONFIDENCE:.0f} %")
        if len(self.results) > 1:
            parts.append("difference and p are those to the first model")
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"{self._title}\n{self._table().to_string()}\n{self._legend}"

    def _repr_html_(self) -> str:
        table = self._table()
        rows = [(str(name), *cells) for name, *cells in table.itertuples()]
        html = html_table(self._title, rows, header=["model", *table.columns])
        return f"{html}<small>{self._legend}</small>"


def _text(mean: float, margin: float, n_digits: int) -> str:
    text = f"{mean:.{n_digits}g}"
    return text if np.isnan(margin) else f"{text} ± {margin:.2g}"


def metrics_of(splits: pd.DataFrame) -> list[str]:
    """Return the names of the metrics, in their order."""
    return list(splits["metric"].unique())


def summarize(
    splits: pd.DataFrame, metric: str, test_ratio: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the frames of models, the best by a metric first, and of their pairs."""
    models = list(splits["model"].unique())
    results, scores = pd.DataFrame(index=pd.Index(models, name="model")), {}
    for name in metrics_of(splits):
        rows = splits[splits["metric"] == name]
        scores[name] = values = rows.pivot(index="split", columns="model", values="score")[models]
        estimates = [estimate_mean(values[model].to_numpy(), test_ratio) for model in models]
        means, errors = np.transpose(estimates)
        results[f"mean_test_{name}"] = means
        results[f"std_test_{name}"] = values.std(ddof=0, skipna=False)
        results[f"stderr_test_{name}"] = errors
    fits = splits[splits["metric"] == metric].groupby("model")
    for phase in ("fit", "score"):
        results[f"mean_{phase}_time"] = fits[f"{phase}_time"].mean()
    results["n_failed"] = fits["error"].count()
    results = results.sort_values(f"mean_test_{metric}", ascending=False, kind="stable")
    pairs = {
        m: compare_pairs(values[list(results.index)], test_ratio) for m, values in scores.items()
    }
    for name, frame in pairs.items():
        frame.insert(0, "metric", name)
    return results, pd.concat(pairs.values(), ignore_index=True)
