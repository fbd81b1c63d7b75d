"""Committed results of the benchmarks, for the pictures of them."""

import json
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def load(name):
    """Return the content of a file of results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def cost_cells():
    """Return the cells of `bench_cost.py`: case, action, container, rows, and both seconds."""
    return load("cost-2026-11-28.json")["cells"]
