"""Designs and linear models with their objectives, for tests of optimality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, xlogy
from sklearn import linear_model as reference

from skfleet import estimators as ours

# Parameters that scikit-learn does not have, or that mean something else there.
OURS = {"device", "solver"}


def make_design(kind, n_rows=300, n_features=8, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "wide":
        n_rows, n_features = 40, 60
    X = rng.normal(size=(n_rows, n_features))
    X[:, 1] += 0.5 * X[:, 0]
    if kind == "bad scale":
        X *= np.logspace(-4, 4, n_features)
    if kind == "collinear":
        X[:, 2], X[:, 3] = X[:, 0], X[:, 0] + X[:, 4]
    if kind == "constant":
        X[:, 2], X[:, 3] = 0.0, 7.0
    if kind == "sparse":
        X[np.abs(X) < 1] = 0
    return X


def unit_columns(X):
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 1e-12, deviation, 1.0)


def half_deviance(y, mean, p):
    """Half the Tweedie deviance of each row."""
    if p == 1:
        return xlogy(y, y / mean) - y + mean
    if p == 2:
        return np.log(mean / y) + y / mean - 1
    own = y ** (2 - p) / ((1 - p) * (2 - p))
    return own - y * mean ** (1 - p) / (1 - p) + mean ** (2 - p) / (2 - p)


DESIGNS = ["plain", "bad scale", "collinear", "constant", "wide", "sparse"]


@dataclass
class Case:
    """An estimator with the targets it is for, and its average loss and penalties."""

    model: Any
    target: str
    power: float | None = None

    def reference(self, **settings):
        known = {k: v for k, v in self.model.get_params().items() if k not in OURS}
        return getattr(reference, type(self.model).__name__)(**known | settings)

    def y(self, X, seed=1):
        rng = np.random.default_rng(seed)
        eta = 0.5 * unit_columns(X)[:, :3] @ [1.0, -1.0, 0.5]
        if self.target == "number":
            return 3 * eta + rng.normal(size=len(X)) + 2
        if self.target == "count":
            return rng.poisson(np.exp(eta)).astype(float)
        if self.target == "amount":
            return rng.gamma(2.0, np.exp(eta) / 2)
        noise = 0 if self.target == "separable" else rng.logistic(size=len(X))
        n_classes = 3 if self.target == "three" else 2
        edges = [0.0] if n_classes == 2 else [-0.5, 0.7]
        return np.array(list("abc"))[np.searchsorted(edges, 2 * eta + noise)]

    def strengths(self, weight):
        """L1 and L2 penalties of the average objective."""
        p = self.model.get_params()
        if "C" in p:
            return p["l1_ratio"] / p["C"] / weight, (1 - p["l1_ratio"]) / p["C"] / weight
        name = type(self.model).__name__
        if name in ("Lasso", "ElasticNet"):
            share = p.get("l1_ratio", 1.0)
            return p["alpha"] * share, p["alpha"] * (1 - share)
        if name == "LinearRegression":
            return 0.0, 0.0
        return 0.0, p["alpha"] / weight if name.startswith("Ridge") else p["alpha"]

    def loss(self, coef, intercept, X, y, weight):
        """Return the average loss and its gradient in the coefficients."""
        eta = X @ coef.T + intercept
        if y.dtype.kind == "U":
            classes = np.unique(y)
            eta = np.hstack([np.zeros_like(eta), eta]) if eta.shape[1] == 1 else eta
            codes = np.searchsorted(classes, y)
            value = -log_softmax(eta, axis=1)[np.arange(len(y)), codes]
            slope = np.exp(log_softmax(eta, axis=1)) - np.eye(len(classes))[codes]
            slope = slope[:, -len(coef) :]
        elif self.power is not None:
            mean = np.exp(eta[:, 0])
            value = half_deviance(y, mean, self.power)
            slope = ((mean - y) * mean ** (1 - self.power))[:, None]
        else:
            value, slope = 0.5 * (eta[:, 0] - y) ** 2, eta - y[:, None]
        share = weight / weight.sum()
        return share @ value, ((share[:, None] * slope).T @ X), share @ slope

    def objective(self, model, X, y, weight):
        coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
        l1, l2 = self.strengths(weight.sum())
        value, _, _ = self.loss(coef, intercept, X, y, weight)
        return value + l1 * np.abs(coef).sum() + 0.5 * l2 * (coef**2).sum()

    def violation(self, coef, intercept, X, y, weight):
        """The largest violation of an optimality condition, for columns at unit deviation."""
        l1, l2 = self.strengths(weight.sum())
        _, slope, free = self.loss(coef, intercept, X, y, weight)
        # taken about the mean: the intercept sees to the rest
        slope = slope - np.outer(free, np.average(X, axis=0, weights=weight)) + l2 * coef
        used = np.abs(slope + l1 * np.sign(coef))
        each = np.where(coef != 0, used, np.maximum(np.abs(slope) - l1, 0))
        deviation = X.std(axis=0)
        return max((each / np.where(deviation > 1e-12, deviation, 1)).max(), np.abs(free).max())

    def null(self, X, y, weight):
        """The model that knows the mean of the targets only."""
        share = weight / weight.sum()
        if y.dtype.kind == "U":
            classes = np.unique(y)
            p = np.array([share[y == c].sum() for c in classes])
            eta = np.array([np.log(p[1] / p[0])]) if len(classes) == 2 else np.log(p)
        else:
            mean = share @ y
            eta = np.array([np.log(mean) if self.power is not None else mean])
        return np.zeros((len(eta), X.shape[1])), eta


CASES = {
    "ols": Case(ours.LinearRegression(), "number"),
    "ridge": Case(ours.Ridge(0.5), "number"),
    "lasso": Case(ours.Lasso(0.05), "number"),
    "elastic net": Case(ours.ElasticNet(0.05), "number"),
    "poisson": Case(ours.PoissonRegressor(alpha=0.01), "count", 1.0),
    "gamma": Case(ours.GammaRegressor(alpha=0.01), "amount", 2.0),
    "tweedie": Case(ours.TweedieRegressor(power=1.5, alpha=0.01), "count", 1.5),
    "poisson lbfgs": Case(ours.PoissonRegressor(alpha=0.01, solver="lbfgs"), "count", 1.0),
    "logistic": Case(ours.LogisticRegression(), "two"),
    "logistic lbfgs": Case(ours.LogisticRegression(solver="lbfgs"), "two"),
    "logistic l1": Case(ours.LogisticRegression(l1_ratio=1.0), "two"),
    "logistic elastic": Case(ours.LogisticRegression(C=0.3, l1_ratio=0.5), "two"),
    "separable": Case(ours.LogisticRegression(), "separable"),
    "separable l1": Case(ours.LogisticRegression(l1_ratio=1.0), "separable"),
    "multinomial": Case(ours.LogisticRegression(), "three"),
    "multinomial l1": Case(ours.LogisticRegression(l1_ratio=1.0), "three"),
    "multinomial elastic": Case(ours.LogisticRegression(l1_ratio=0.5), "three"),
}
