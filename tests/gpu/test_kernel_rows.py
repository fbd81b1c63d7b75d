"""Which rows CUDA kernels are for."""

import numpy as np
import pytest

from skfleet import _cuda_gram
from skfleet.estimators import _moments_kernel
from skfleet.estimators.cluster import _cuda_kernel
from skfleet.glm import _loss_kernel
from skfleet.glm._losses import BinaryLogistic


def supports_loss(X):
    return _loss_kernel.kernel_constants(X, BinaryLogistic(), centered=False) is not None


SUPPORTS = {
    "nearest": lambda X: _cuda_kernel.supports(X, 4),
    "gram": lambda X: _cuda_gram.supports(X, 1),
    "moments": _moments_kernel.supports,
    "loss": supports_loss,
}


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", SUPPORTS)
@pytest.mark.parametrize("order", ["contiguous", "columns", "strided", "integers", "none"])
def test_kernels_are_for_rows_one_after_the_other(kernel, order):
    import cupy

    X = cupy.asarray(np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32))
    X = {
        "contiguous": X,
        "columns": cupy.asfortranarray(X),
        "strided": X[::2],
        "integers": X.astype(cupy.int32),
        "none": X[:0],
    }[order]
    assert SUPPORTS[kernel](X) == (order == "contiguous")


@pytest.mark.parametrize("kernel", SUPPORTS)
def test_kernels_are_not_for_rows_on_the_host(kernel):
    assert not SUPPORTS[kernel](np.ones((300, 6)))
