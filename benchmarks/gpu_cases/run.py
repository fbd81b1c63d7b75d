"""What a case says as it goes: each thing that was timed, or its error, kept at once."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from gpu_cases.machine import Machine, Sizes

from skfleet._array import to_host

Entry = dict[str, Any]
BASIC = ("who", "seconds", "first_seconds", "runs", "rows", "error")


class Run:
    """One case on one machine. `keep` is given every entry as soon as there is one."""

    def __init__(self, case: str, machine: Machine, sizes: Sizes, keep: Callable[[Entry], None]):
        self.case, self.machine, self.sizes = case, machine, sizes
        self._keep = keep
        self.seconds: dict[str, float] = {}
        self.scores: dict[Any, dict[str, np.ndarray]] = {}

    def note(self, who: str, **facts: Any) -> None:
        """Keep an entry, and print it."""
        entry = {"who": who, **facts}
        print(line(self.case, entry), flush=True)
        self._keep(entry)

    def failed(self, who: str, error: BaseException, **facts: Any) -> None:
        """Keep an error."""
        trace = traceback.format_exception(error)
        self.note(who, error=described(error), traceback="".join(trace)[-4000:], **facts)

    def timed(
        self,
        who: str,
        func: Callable[[], Any],
        facts: Callable[[Any], Entry] | None = None,
        **more: Any,
    ) -> Any:
        """Time a call, and return its answer; None where it fails, which is kept."""
        self.machine.free()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                times = self.machine.best_of(func, self.sizes.repeats, self.sizes.patience)
        except Exception as error:
            self.failed(who, error, **more)
            return None
        self.seconds[who] = times.best
        entry = {
            "seconds": times.best,
            "first_seconds": times.first,
            "runs": times.runs,
            **more,
            **self._facts(facts, times.value),
        }
        self.note(who, **entry)
        return times.value

    def timed_share(
        self,
        who: str,
        prepare: Callable[[int], Any],
        func: Callable[[Any], Any],
        n_rows: int,
        facts: Callable[[Any], Entry] | None = None,
        most: int | None = None,
        step: int = 1,
        **more: Any,
    ) -> Any:
        """Time a call on the largest share of the rows that patience allows, and scale it up.

        The share grows by four, in multiples of `step`, so the time of the last one is known
        beforehand; that one is repeated while there is patience. The time of all rows lies on the
        line through the last two shares, so that what a call takes for no rows counts once. What
        `prepare` makes of a share is not timed. Returns the answer, None where the call fails.
        """
        most = n_rows if most is None else max(min(most, n_rows) // step, 1) * step
        n = min(most, max(max(n_rows // 256, 1_000) // step, 1) * step)
        spent, taken = 0.0, []
        before: tuple[int, float] | None = None
        try:
            data = prepare(n)
            while True:
                began = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    value = func(data)
                taken.append(time.perf_counter() - began)
                spent += taken[-1]
                larger = min(4 * n, most)
                # of one share alone nobody knows what a call takes for no rows
                expected = extrapolated(before, n, min(taken), larger) if before else taken[0]
                if n < larger and expected <= self.sizes.patience:
                    before = n, min(taken)
                    n, taken, data = larger, [], None
                    self.machine.free()
                    data = prepare(n)
                elif len(taken) >= self.sizes.repeats or spent + taken[-1] > self.sizes.patience:
                    break
        except Exception as error:
            self.failed(who, error, rows=n, **more)
            return None
        seconds = min(taken)
        self.seconds[who] = extrapolated(before, n, seconds, n_rows)
        entry = {"seconds": self.seconds[who], "runs": len(taken), "rows": n_rows}
        if n < n_rows:
            scaled_by = self.seconds[who] / seconds
            entry |= {"measured_rows": n, "measured_seconds": seconds, "scaled_by": scaled_by}
        self.note(who, **entry, **more, **self._facts(facts, value))
        return value

    def ratios(self, ours: str, theirs: list[str]) -> None:
        """Keep how many times as fast as others we are."""
        known = [name for name in theirs if name in self.seconds]
        if ours in self.seconds and known:
            ratio = {name: self.seconds[name] / self.seconds[ours] for name in known}
            self.note(f"{ours}, times as fast as", **ratio)

    def _facts(self, facts: Callable[[Any], Entry] | None, value: Any) -> Entry:
        """Look at an answer; what was timed is kept even if that fails."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return {} if facts is None else facts(value)
        except Exception as error:
            trace = traceback.format_exception(error)
            return {"error_in_comparison": described(error), "traceback": "".join(trace)[-4000:]}


def described(error: BaseException) -> str:
    """Name an error and its message, in a line."""
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]


def extrapolated(before: tuple[int, float] | None, n: int, seconds: float, rows: int) -> float:
    """Say how long so many rows take, from the time of n of them and of fewer before."""
    if before is None:
        return seconds * rows / n
    slope = (seconds - before[1]) / (n - before[0])
    return seconds + max(slope, 0.0) * (rows - n)


def difference(one: Any, other: Any) -> float:
    """Return the largest difference of two arrays, in units of the other's largest number."""
    one, other = (np.asarray(to_host(v), dtype=np.float64).ravel() for v in (one, other))
    return float(np.max(np.abs(one - other)) / np.max(np.abs(other)))


def line(case: str, entry: Entry) -> str:
    """Write an entry as a row of the table."""
    start = f"{case:9} {entry['who']:44}"
    if "error" in entry:
        return f"{start} {'-':>11}  {entry['error']}"
    seconds = f"{entry['seconds']:9.4f} s" if "seconds" in entry else ""
    shown = (
        f"{name}={_short(value)}"
        for name, value in entry.items()
        if name not in BASIC and isinstance(value, (int, float, str)) and name != "traceback"
    )
    return f"{start} {seconds:>11}  {' '.join(shown)}".rstrip()


def _short(value: float | str) -> str:
    """Write a value in a few characters."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
