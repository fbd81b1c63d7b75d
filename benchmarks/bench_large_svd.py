"""Ten singular vectors of genotypes that no memory holds: uint8, cut along both axes, made lazily.

`make bench` runs a twentieth. For all 200,000 x 20,000, and a table with what 10,000,000 x 20,000
would take, run this file:

    python benchmarks/bench_large_svd.py
"""

import argparse
import functools
import time

import dask
import dask.array as da
import numpy as np
from scipy import linalg

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import TruncatedSVD

N_PROTOTYPES, N_GROUPS = 2000, 30


@functools.lru_cache(maxsize=64)
def prototypes(n_columns, part):
    """Some columns of the rows that all others repeat: 0, 1 or 2 copies of an allele, in groups.

    Groups are of different sizes and differ in how frequent an allele is, as populations do.
    """
    rng = np.random.default_rng(part)
    common = rng.uniform(0.1, 0.9, size=n_columns)
    apart = 0.1 * rng.normal(size=(N_GROUPS, n_columns))
    frequency = np.clip(common + apart, 0.02, 0.98).astype(np.float32)
    group = np.minimum(np.random.default_rng(0).geometric(0.12, N_PROTOTYPES) - 1, N_GROUPS - 1)
    copies = np.zeros((N_PROTOTYPES, n_columns), dtype=np.uint8)
    for _ in range(2):
        copies += rng.random(copies.shape, dtype=np.float32) < frequency[group]
    return copies


def prototype_of(rows):
    """Return which prototype each row repeats, by its number alone."""
    return (rows.astype(np.uint64) * np.uint64(2654435761) % np.uint64(2**32)) % N_PROTOTYPES


def _chunk(start, n_rows, n_columns, part):
    """Make one chunk."""
    return prototypes(n_columns, part)[prototype_of(np.arange(start, start + n_rows))]


def genotypes(n_rows, n_columns, chunk_rows, chunk_columns):
    """Return a lazy array of genotypes."""
    chunk = dask.delayed(_chunk, pure=True)
    shape = (chunk_rows, chunk_columns)
    return da.block(
        [
            [
                da.from_delayed(chunk(start, *shape, part), shape, dtype=np.uint8)
                for part in range(n_columns // chunk_columns)
            ]
            for start in range(0, n_rows, chunk_rows)
        ]
    )


def exact(n_rows, n_columns, chunk_columns, n):
    """Return the leading singular values and vectors, from the prototypes and how many of each."""
    count = np.bincount(prototype_of(np.arange(n_rows)).astype(int), minlength=N_PROTOTYPES)
    parts = [prototypes(chunk_columns, part) for part in range(n_columns // chunk_columns)]
    weighted = np.hstack(parts) * np.sqrt(count)[:, None]
    last = len(weighted) - 1
    squares, left = linalg.eigh(weighted @ weighted.T, subset_by_index=[last + 1 - n, last])
    values = np.sqrt(squares[::-1])
    return values, (left[:, ::-1].T @ weighted) / values[:, None]


def run(scale=1.0, n=10, fleet=None, **settings):
    """Decompose, and return figures: seconds, passes, bytes made in a pass, errors."""
    fleet = fleet or {"memory_limit": "1GB"}
    n_rows, n_columns = int(200_000 * scale**0.5) // 10 * 10, int(20_000 * scale**0.5) // 8 * 8
    chunks = (n_rows // 20 if scale == 1 else n_rows // 10, n_columns // 8)
    n_rows = chunks[0] * (n_rows // chunks[0])
    X = genotypes(n_rows, n_columns, *chunks)
    with (
        Fleet(n_workers=2, dashboard_address=None, **fleet),
        counting() as counts,
    ):
        began = time.perf_counter()
        model = TruncatedSVD(n, algorithm="randomized", random_state=0, **settings).fit(X)
        seconds = time.perf_counter() - began
    values, vectors = exact(n_rows, n_columns, chunks[1], n)
    return {
        "shape": X.shape,
        "seconds": seconds,
        "passes": counts.passes,
        "tasks": counts.tasks,
        "bytes": X.nbytes,
        "values": float(np.max(np.abs(model.singular_values_ / values - 1))),
        "angle": float(np.max(linalg.subspace_angles(model.components_.T, vectors.T))),
    }


class LargeSVD:
    """A twentieth of the elements, on two workers in this process."""

    timeout = 600

    def setup_cache(self):
        return run(1 / 20, fleet={"processes": False})

    def track_passes(self, found):
        return found["passes"]

    def track_seconds_a_pass(self, found):
        return found["seconds"] / found["passes"]

    def track_error_of_values(self, found):
        return found["values"]

    def track_angle(self, found):
        return found["angle"]


def main():
    """Run all of it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the elements")
    parser.add_argument("--n-iter", type=int, default=5, help="power iterations")
    parser.add_argument(
        "--allocation",
        action="store_true",
        help="only time a tenth, as Fleet starts workers and as distributed does",
    )
    given = parser.parse_args()
    if given.allocation:
        threshold = {"MALLOC_TRIM_THRESHOLD_": 2**16, "MALLOC_MMAP_THRESHOLD_": 2**17}
        for name, env in (("Fleet", {}), ("distributed", threshold)) * 2:
            seconds = run(1 / 10, fleet={"memory_limit": "1GB", "env": env})["seconds"]
            print(f"memory as of {name:<12} {seconds:5.1f} s")
        return
    found = run(given.scale, n_iter=given.n_iter)
    rows, columns = found["shape"]
    larger = 10_000_000 * 20_000 / (rows * columns)
    print(f"{rows:,} x {columns:,} uint8, 10 components, 2 workers of 1 GB and one thread")
    print(f"  passes                     {found['passes']}")
    print(f"  tasks                      {found['tasks']}")
    print(f"  bytes made in a pass       {found['bytes'] / 1e9:,.1f} GB")
    print(f"  seconds                    {found['seconds']:.1f}")
    print(f"  error of singular values   {found['values']:.1e}, as a share")
    print(f"  angle between subspaces    {found['angle']:.1e}")
    print("10,000,000 x 20,000, extrapolated: as many passes, and each in proportion")
    print(f"  bytes made in a pass       {larger * found['bytes'] / 1e9:,.0f} GB")
    print(f"  seconds                    {larger * found['seconds']:,.0f} on these workers")


if __name__ == "__main__":
    main()
