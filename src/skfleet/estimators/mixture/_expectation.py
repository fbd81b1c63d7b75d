"""Log-densities, responsibilities and their sums over a block of rows: the E step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, asarray_like, astype, dtype_of, namespace
from skfleet._linalg import dot, gram, row_norms, sums_down, vstack, weighted_gram
from skfleet.blocks import Block, row_slices, row_uniform
from skfleet.estimators.mixture._gaussians import ComponentSums, Gaussians, origins_of


class ExpectationSums(NamedTuple):
    """Number of rows, sum of their log-likelihoods, and sums by component."""

    n_rows: int
    log_likelihood: Any
    components: ComponentSums


def expectation(block: Block, model: Gaussians) -> ExpectationSums:
    """Return the sums of a block that the M step, and the lower bound, are made of."""
    responsibilities, log_likelihood = normalize(log_densities(model, block.X))
    total = namespace(log_likelihood).sum(log_likelihood)
    sums = component_sums(block.X, responsibilities, model.kind, model.origins)
    return ExpectationSums(block.n_rows, total, sums)


def log_densities(model: Gaussians, X: Any) -> Any:
    """Return the logarithms of weights times densities of float64 rows, a column per component."""
    distances = _full_distances(model, X) if model.kind == "full" else _distances(model, X)
    distances *= -0.5
    distances += asarray_like(model.log_scales, X)
    return distances


def _full_distances(model: Gaussians, X: Any) -> Any:
    """Return squared Mahalanobis distances by covariances of each component's own."""
    columns = (
        row_norms(dot(X - asarray_like(mean, X), factor))
        for mean, factor in zip(model.means, model.factors, strict=True)
    )
    return namespace(X).stack(list(columns), axis=1)


def _distances(model: Gaussians, X: Any) -> Any:
    """Return squared Mahalanobis distances for the other types of covariances, by products."""
    origin = model.origins[0]
    Z, means = X - asarray_like(origin, X), model.means - origin
    if model.kind == "diag":
        scaled = means * model.precisions
        distances = dot(Z * Z, model.precisions.T) + dot(Z, -2 * scaled.T)
        distances += asarray_like(np.sum(scaled * means, axis=1), X)
        return distances
    if model.kind == "tied":
        Z, means = dot(Z, model.factors), means @ model.factors
    distances = dot(Z, -2 * means.T)
    distances += row_norms(Z)[:, None] + asarray_like(np.sum(means**2, axis=1), X)
    if model.kind == "spherical":
        distances *= asarray_like(model.precisions, X)
    return distances


def normalize(logs: Any) -> tuple[Any, Any]:
    """Return responsibilities and log-likelihoods of rows from their log-densities, in place."""
    xp = namespace(logs)
    peak = xp.max(logs, axis=1, keepdims=True)
    logs -= peak
    densities = xp.exp(logs)
    total = xp.sum(densities, axis=1, keepdims=True)
    densities /= total
    return densities, (peak + xp.log(total))[:, 0]


def component_sums(X: Any, responsibilities: Any, kind: str, origins: np.ndarray) -> ComponentSums:
    """Return the sums of float64 rows by component, about origins, on the device of X."""
    xp = namespace(X)
    weights = sums_down(responsibilities)
    if kind == "full":
        parts = []
        for k, origin in enumerate(origins):
            root = xp.sqrt(responsibilities[:, k])
            parts.append(weighted_gram(X, asarray_like(origin, X), root, root[:, None]))
        products, rows = zip(*parts, strict=True)
        return ComponentSums(weights, xp.stack(rows)[:, :, 0], xp.stack(products))
    Z = X - asarray_like(origins[0], X)
    rows = responsibilities.T @ Z
    if kind == "tied":
        return ComponentSums(weights, rows, gram(Z))
    if kind == "diag":
        return ComponentSums(weights, rows, responsibilities.T @ (Z * Z))
    squares = responsibilities.T @ row_norms(Z)
    return ComponentSums(weights, rows, squares / X.shape[1])


# -- initial responsibilities ------------------------------------------------------------------


def nearest_component_sums(block: Block, model: Gaussians, kind: str) -> ComponentSums:
    """Return the sums of rows that each count for the component that is the likeliest."""
    labels = namespace(block.X).argmax(log_densities(model, block.X), axis=1)
    numbers = asarray_like(np.arange(len(model.means)), labels)
    responsibilities = astype(labels[:, None] == numbers, FLOAT64)
    return component_sums(block.X, responsibilities, kind, origins_of(kind, model.means))


def random_sums(block: Block, seeds: list[int], kind: str, origins: np.ndarray) -> ComponentSums:
    """Return the sums of rows by responsibilities that are drawn by the rows' numbers."""
    draws = [row_uniform(seed, block.row_offset, block.n_rows, block.X) for seed in seeds]
    xp = namespace(block.X)
    responsibilities = xp.stack(draws, axis=1)
    responsibilities /= xp.sum(responsibilities, axis=1, keepdims=True)
    return component_sums(block.X, responsibilities, kind, origins)


# -- answers -----------------------------------------------------------------------------------


def labels_of(model: Gaussians, X: Any) -> Any:
    """Return the number of the likeliest component of each row, on the device of X."""
    return _by_slices(lambda logs: namespace(logs).argmax(logs, axis=1), model, X)


def responsibilities_of(model: Gaussians, X: Any) -> Any:
    """Return the probability of each component for each row, on the device of X."""
    return _by_slices(lambda logs: normalize(logs)[0], model, X)


def log_likelihoods_of(model: Gaussians, X: Any) -> Any:
    """Return the log-likelihood of each row, on the device of X."""
    return _by_slices(lambda logs: normalize(logs)[1], model, X)


def _by_slices(answer: Callable[[Any], Any], model: Gaussians, X: Any) -> Any:
    """Return an answer by the log-densities of rows, which are computed in float64."""
    dtype = np.result_type(model.means.dtype, dtype_of(X))
    model = model.in_double()
    slices = (astype(part.X, FLOAT64) for part in row_slices(Block(X), FLOAT64))
    parts = [answer(log_densities(model, part)) for part in slices]
    values = vstack(parts)
    return values if dtype_of(values).kind == "i" else astype(values, dtype)


def log_likelihood(block: Block, model: Gaussians) -> tuple[int, Any]:
    """Return the number of rows of a block, and the sum of their log-likelihoods."""
    log_likelihoods = normalize(log_densities(model.in_double(), block.X))[1]
    return block.n_rows, namespace(log_likelihoods).sum(log_likelihoods)
