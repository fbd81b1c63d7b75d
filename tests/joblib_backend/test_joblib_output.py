"""Prints, warnings and thread limits of calls on workers."""

import sys
import warnings

import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_info

# -- what comes home besides results -----------------------------------------------------------


def talk(i):
    print(f"task {i}")
    print(f"error {i}", file=sys.stderr)
    warnings.warn(f"warning {i}", RuntimeWarning, stacklevel=1)
    return i


def talk_nested():
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        return Parallel(n_jobs=2)(delayed(talk)(i) for i in range(2))


@pytest.mark.parametrize("function", [talk, None])
def test_output_and_warnings_come_home(processes, capsys, function):
    calls = [delayed(talk)(0), delayed(talk)(1)] if function else [delayed(talk_nested)()]
    with (
        parallel_config("skfleet", client=processes),
        pytest.warns(RuntimeWarning, match="warning") as caught,
    ):
        Parallel()(calls)
    assert {str(w.message) for w in caught} == {"warning 0", "warning 1"}
    printed = capsys.readouterr()
    assert sorted(printed.out.split("\n")) == ["", "task 0", "task 1"]
    assert "error 0" in printed.err
    assert "error 1" in printed.err


def test_warning_turned_into_an_error_raises(processes):
    def complain():
        warnings.warn("alas", RuntimeWarning, stacklevel=1)

    with parallel_config("skfleet", client=processes), pytest.raises(RuntimeWarning, match="alas"):
        Parallel()(delayed(complain)() for _ in range(2))


def limit_threadpools():
    np.ones((2, 2)) @ np.ones((2, 2))
    return max((pool["num_threads"] for pool in threadpool_info()), default=1)


@pytest.mark.parametrize(("inner", "expected"), [(None, 1), (2, 2)])
@pytest.mark.usefixtures("two_library_threads")
def test_libraries_use_the_share_of_a_task(threads, inner, expected):
    with parallel_config("skfleet", client=threads, inner_max_num_threads=inner):
        assert set(Parallel()(delayed(limit_threadpools)() for _ in range(4))) == {expected}
