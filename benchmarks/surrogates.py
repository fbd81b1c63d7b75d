"""Imagined estimators: surrogates of YAHPO Gym say what a fit would score and how long it takes.

(Pfisterer, Schneider, Moosbauer, Binder and Bischl, *YAHPO Gym*, AutoML 2022;
github.com/slds-lmu/yahpo_data.) Nothing is trained. The models are read with ``onnxruntime``.

Parameters come in their own units: the logarithms are inside the models. The columns of numbers are
not in the order of ``config_space.json``: `COLUMNS` has the order in which the models scale them.
`python benchmarks/surrogates.py FOLDER` checks that reading.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import loguniform, randint, uniform
from sklearn.model_selection import ParameterSampler

_LCBENCH = """
epoch batch_size learning_rate momentum weight_decay num_layers max_units max_dropout
"""
_XGBOOST = """
nrounds eta gamma lambda alpha subsample max_depth min_child_weight colsample_bytree
colsample_bylevel rate_drop skip_drop trainsize repl
"""
COLUMNS = {"lcbench": _LCBENCH.split(), "rbv2_xgboost": _XGBOOST.split()}

# The tasks of YAHPO's suite for one objective, then the first in the order of config_space.json.
_LCBENCH_TASKS = """
167168 189873 189906 3945 7593 34539 126025 126026 126029 146212 167104 167149 167152 167161 167181
167184 167185 167190 167200 167201
"""
_XGBOOST_TASKS = "12 1501 16 40499 41143 470 1487 40966 41164 1497"
TASKS = {
    "lcbench": _LCBENCH_TASKS.split(),
    "rbv2_xgboost": _XGBOOST_TASKS.split(),
}

# The best and the worst accuracy of some tasks, from yahpo_data/global_statistics.
PUBLISHED = {
    ("lcbench", "3945"): (15.99, 99.63),
    ("lcbench", "167184"): (31.07, 84.43),
    ("lcbench", "189905"): (1.07, 96.35),
    ("rbv2_xgboost", "40981"): (0.202, 0.914),
    ("rbv2_xgboost", "40994"): (0.456, 0.948),
}


def _interval(low: float, high: float) -> Any:
    return uniform(low, high - low)


LCBENCH_PARAMETERS = {
    "batch_size": [16, 32, 64, 128, 256, 512],
    "learning_rate": loguniform(1e-4, 1e-1),
    "max_dropout": _interval(0, 1),
    "max_units": [64, 128, 256, 512, 1024],
    "momentum": _interval(0.1, 0.99),
    "num_layers": randint(1, 6),
    "weight_decay": _interval(1e-5, 0.1),
}
_LINEAR = {
    "booster": ["gblinear"],
    "alpha": loguniform(np.exp(-7), np.exp(7)),
    "lambda": loguniform(np.exp(-7), np.exp(7)),
    "nrounds": loguniform(7, 2981),  # rounded by the imagined estimator
    "num.impute.selected.cpo": ["impute.mean", "impute.median", "impute.hist"],
    "subsample": _interval(0.1, 1),
}
_TREES = _LINEAR | {
    "booster": ["gbtree"],
    "colsample_bylevel": _interval(0.01, 1),
    "colsample_bytree": _interval(0.01, 1),
    "eta": loguniform(np.exp(-7), 1),
    "gamma": loguniform(np.exp(-10), np.exp(2)),
    "max_depth": randint(1, 16),
    "min_child_weight": loguniform(np.exp(1), np.exp(5)),
}
_DART = _TREES | {
    "booster": ["dart"],
    "rate_drop": _interval(0, 1),
    "skip_drop": _interval(0, 1),
}
PARAMETERS = {"lcbench": LCBENCH_PARAMETERS, "rbv2_xgboost": [_LINEAR, _TREES, _DART]}


class Answers(NamedTuple):
    """Accuracies in percent, and seconds, by candidate and number of calls."""

    scores: np.ndarray
    seconds: np.ndarray


@lru_cache
def _model(folder: str) -> tuple[Any, dict[str, dict[str, int]]]:
    """Return the session of a model, with one thread, and its numbers of categories."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(Path(folder) / "model.onnx"), options)
    return session, json.loads((Path(folder) / "encoding.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class ImaginedEstimator:
    """A network (lcbench) or XGBoost (rbv2_xgboost) on the rows of an OpenML task.

    A call is an epoch of the network, which goes on where it was; or a 27th of the rows, on which
    XGBoost is trained anew.
    """

    data: str
    scenario: str
    task: str

    @property
    def parameters(self) -> Any:
        """Parameters as one writes them for a search, conditional ones as a list of dicts."""
        return PARAMETERS[self.scenario]

    @property
    def n_calls(self) -> int:
        """Calls of a full evaluation."""
        return 52 if self.is_warm else 27

    @property
    def is_warm(self) -> bool:
        """Whether training goes on where it was."""
        return self.scenario == "lcbench"

    def answers(self, candidates: Sequence[Mapping[str, Any]], levels: Sequence[int]) -> Answers:
        """Return the answers for candidates after so many calls each."""
        session, encoding = _model(str(Path(self.data) / self.scenario))
        shape = len(candidates), len(levels)
        numbers = np.array([self._numbers(params) for params in candidates], dtype=np.float32)
        rows = np.repeat(numbers, len(levels), axis=0)
        calls = np.tile(np.asarray(levels, dtype=np.float32), len(candidates))
        fidelity = COLUMNS[self.scenario].index("epoch" if self.is_warm else "trainsize")
        rows[:, fidelity] = calls if self.is_warm else calls / self.n_calls
        codes = [self._codes(params, encoding) for params in candidates]
        categories = np.repeat(np.array(codes, dtype=np.int32), len(levels), axis=0)
        (table,) = session.run(None, {"x_cat": categories, "x_cont": rows})
        if self.is_warm:
            seconds, scores = table[:, 0].reshape(shape), table[:, 1].reshape(shape)
            # Of the whole run so far; the model may say a little less after more epochs.
            seconds = np.maximum.accumulate(seconds, axis=1)
        else:
            # The accuracy is a share; the seconds are those of the fit and of the prediction.
            scores = 100 * table[:, 0].reshape(shape)
            seconds = table[:, 6:8].sum(axis=1).reshape(shape)
        return Answers(scores.astype(float), np.maximum(seconds.astype(float), 1e-3))

    def _numbers(self, params: Mapping[str, Any]) -> list[float]:
        """Return the row of a candidate; parameters that it does not have are 0."""
        values = dict(params)
        if not self.is_warm:
            values |= {"nrounds": round(values["nrounds"]), "repl": 10}
        return [float(values.get(name, 0)) for name in COLUMNS[self.scenario]]

    def _codes(self, params: Mapping[str, Any], encoding: dict[str, dict[str, int]]) -> list[int]:
        if self.is_warm:
            return [encoding["OpenML_task_id"][self.task]]
        names = ("booster", "num.impute.selected.cpo")
        return [encoding["task_id"][self.task], *(encoding[name][params[name]] for name in names)]


@lru_cache
def sample(scenario: str, n: int) -> list[dict[str, Any]]:
    """Draw candidates at random."""
    return list(ParameterSampler(PARAMETERS[scenario], n, random_state=0))


def check_reading(data: str, n: int = 2000) -> Iterable[str]:
    """Yield a line for each task whose published accuracies are known; raise where one is off."""
    for (scenario, task), (worst, best) in PUBLISHED.items():
        estimator = ImaginedEstimator(data, scenario, task)
        unit = 1 if estimator.is_warm else 100
        levels = [1, estimator.n_calls // 3, estimator.n_calls]
        answers = estimator.answers(sample(scenario, n), levels)
        means = answers.scores.mean(axis=0)
        times = answers.seconds.mean(axis=0)
        low, high = answers.scores.min(), answers.scores.max()
        yield (
            f"{scenario} {task}: accuracies {low:.2f} to {high:.2f}, published "
            f"{unit * worst:.2f} to {unit * best:.2f}; means after {levels} calls "
            f"{means.round(2).tolist()}, seconds {times.round(1).tolist()}"
        )
        # More calls are better in the mean and take longer; the best is near the published one.
        assert (np.diff(means) > 0).all()
        assert (np.diff(times) > 0).all()
        assert low >= 0
        assert abs(high - unit * best) < 4


if __name__ == "__main__":
    for text in check_reading(sys.argv[1]):
        print(text)
