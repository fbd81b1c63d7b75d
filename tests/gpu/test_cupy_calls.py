"""The calls of CuPy's own that the array API does not have."""

import numpy as np
import pytest

from skfleet._linalg import qr_r

pytestmark = pytest.mark.gpu
X = np.random.default_rng(0).normal(size=(300, 5))


def test_a_triangle_is_computed_without_its_basis(monkeypatch):
    import cupy

    modes, qr = [], cupy.linalg.qr

    def watched(a, mode="reduced"):
        modes.append(mode)
        return qr(a, mode=mode)

    monkeypatch.setattr(cupy.linalg, "qr", watched)
    R = qr_r(cupy.asarray(X)).get()
    assert modes == ["r"]
    assert R.shape == (5, 5)
    np.testing.assert_allclose(R.T @ R, X.T @ X)
