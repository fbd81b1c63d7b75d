"""The example that ``make demo`` runs: it agrees with scikit-learn, and would say if it did not."""

import importlib.util
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from distributed import Client, Security

from skfleet import Fleet
from skfleet.exceptions import FleetError

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.py"


def import_example(name, monkeypatch):
    """Import an example without running it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def quickstart(monkeypatch):
    return import_example("quickstart", monkeypatch)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([3.0, 5.0], [3.0, 4.0], 0.2),
        ([1, 2, 3, 5], [1, 2, 3, 4], 0.25),
        ("{'C': 1}", "{'C': 2}", 1.0),
        ([1.0], [[1.0]], np.inf),
    ],
)
def test_difference(quickstart, ours, theirs, expected):
    assert quickstart.difference(ours, theirs) == pytest.approx(expected)


@pytest.mark.parametrize(("ours", "status"), [(1.0, 0), (1.0 + 1e-3, 1), (np.nan, 1)])
def test_status_says_whether_answers_agree(quickstart, monkeypatch, capsys, ours, status):
    def use():
        return quickstart.Use(
            "a use",
            "one number",
            lambda: quickstart.Answer(lambda: "ours", [ours]),
            lambda: quickstart.Answer(lambda: "theirs", [1.0]),
            1e-6,
        )

    monkeypatch.setattr(quickstart, "USES", [use])
    monkeypatch.setattr(quickstart, "Fleet", lambda n_workers: nullcontext())
    assert quickstart.main() == status
    assert ("FAILED" in capsys.readouterr().out) == bool(status)


@pytest.mark.slow
def test_uses_agree_with_scikit_learn(quickstart, monkeypatch, process_cluster, capsys):
    few = {"forest": 50, "search": 300, "search_with_shared_fits": 300, "post_fit": 3}
    uses = [
        partial(use, few[use.__name__]) if use.__name__ in few else use for use in quickstart.USES
    ]
    monkeypatch.setattr(quickstart, "USES", uses)
    monkeypatch.setattr(quickstart, "Fleet", lambda n_workers: Client(process_cluster))
    assert quickstart.main() == 0
    assert f"All {len(uses)} agree with scikit-learn" in capsys.readouterr().out


@pytest.mark.slow
def test_quickstart_agrees_with_scikit_learn():
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, str(QUICKSTART)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "agree with scikit-learn" in run.stdout
    assert "Warning" not in run.stderr


@pytest.mark.slow
def test_adaptive_searches_and_their_picture(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.png"
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "adaptive.py"), str(picture)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert "digits: 143 models, 1581 calls of partial_fit" in done.stdout
    assert done.stdout.count("on rows never seen") == 3
    assert picture.stat().st_size > 10_000


def test_parquet_files_are_predicted_as_by_scikit_learn(tmp_path, monkeypatch, process_cluster):
    ours = import_example("tabular", monkeypatch)
    theirs = import_example("tabular_sklearn", monkeypatch)
    source, target = str(tmp_path / "trips"), str(tmp_path / "predictions")
    ours.make_trips(source, n_files=4, n_rows=500)
    with Client(process_cluster):
        accuracy = ours.main(source, target)
    assert accuracy == theirs.main(source, target)
    assert accuracy > 0.9
    predicted, expected = pd.read_parquet(target), pd.read_parquet(f"{target}.parquet")
    order = ["fare", "distance"]
    assert predicted.sort_values(order)["paid"].tolist() == (
        expected.sort_values(order)["paid"].tolist()
    )


DEPLOYMENTS = {
    "slurm": "slurm_cluster",
    "ssh": "ssh_cluster",
    "command_line": "command_line",
    "kubernetes": "kube_cluster",
}


@pytest.mark.parametrize(("name", "script"), DEPLOYMENTS.items())
def test_deployments_have_a_page_and_a_log_of_a_run_that_ended_right(name, script):
    folder = ROOT / "examples" / "deploy"
    page = (ROOT / "docs" / "guide" / f"{name}.md").read_text()
    assert f"examples/deploy/{script}.py" in page
    assert f"examples/deploy/logs/{name}.txt" in page
    lines = (folder / "logs" / f"{name}.txt").read_text().splitlines()
    assert lines[-1] == "all right"
    assert "scikit-fleet 0" in lines[1]
    assert script in (ROOT / "Makefile").read_text()


def test_credentials_are_for_their_owner_and_connect(tmp_path, monkeypatch):
    credentials = import_example("deploy/credentials", monkeypatch)
    paths = credentials.write_credentials(tmp_path / "credentials")
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in paths.values()} == {0o600}
    assert stat.S_IMODE((tmp_path / "credentials").stat().st_mode) == 0o700
    both = {"cert": paths["cert"], "key": paths["key"]}
    roles = {f"tls_{r}_{k}": path for r in ("scheduler", "worker") for k, path in both.items()}
    security = Security(require_encryption=True, tls_ca_file=paths["ca-file"], **roles)
    security.tls_client_cert, security.tls_client_key = both["cert"], both["key"]
    with Fleet(n_workers=1, processes=False, security=security) as local:
        with Fleet(local.scheduler.address, security=credentials.security_of(paths)) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        others = credentials.write_credentials(tmp_path / "others")
        with pytest.raises(FleetError, match="Got ones that its certificate does not fit"):
            Fleet(local.scheduler.address, security=credentials.security_of(others), timeout=5)
