"""Plugin of `make test-fast`: the first case of each quick test, and no process is started."""

import multiprocessing.process
import subprocess
from pathlib import Path

import pytest

SLOWER = Path(__file__).parent / "slower_tests.txt"
# Of these folders every test starts processes, or waits for some.
OTHERS = tuple(
    f"tests/{folder}/"
    for folder in (
        "estimators/boosting", "faults", "fleet", "gpu", "joblib_backend", "journeys", "peers"
    )
)  # fmt: skip
MAX_SECONDS = 2.0


def slower_tests():
    """Return the names of the tests in the file, without cases."""
    lines = SLOWER.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def pytest_collection_modifyitems(config, items):
    chosen, left_out, names = [], [], slower_tests()
    for item in items:
        name = item.nodeid.partition("[")[0]
        is_chosen = name not in names and not name.startswith(OTHERS)
        is_chosen &= "process_cluster" not in item.fixturenames
        (chosen if is_chosen else left_out).append(item)
        names |= {name}  # further cases
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session", autouse=True)
def no_processes():
    """Fail tests that start a process."""

    def refuse(*args, **kwargs):
        pytest.fail(f"a fast test must start no process. Enter it in {SLOWER.name}.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refuse)
        patch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
        yield


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("passed", ()):
        if report.duration > MAX_SECONDS:
            text = f"{report.nodeid} took {report.duration:.1f} s: enter it in {SLOWER.name}"
            terminalreporter.write_line(text)
