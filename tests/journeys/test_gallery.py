"""The scripts of the gallery, as a reader runs them: alone, in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))
# A backend of matplotlib that draws as Agg does, and notes the figures that a script shows.
BACKEND = """
import os

import matplotlib.pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

def show(*args, **kwargs):
    with open(os.environ["N_FIGURES"], "a") as file:
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()
            print(number, file=file)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_run_alone_and_show_figures(tmp_path, script):
    pytest.importorskip("matplotlib")
    modules, working, n_figures = (tmp_path / name for name in ("modules", "working", "n_figures"))
    modules.mkdir()
    working.mkdir()
    (modules / "noting_agg.py").write_text(BACKEND)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(modules), str(ROOT / "src")]),
        "MPLBACKEND": "module://noting_agg",
        "N_FIGURES": str(n_figures),
    }
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=working,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    # a loaded machine takes longer to start workers than goes without saying
    assert [line for line in run.stderr.splitlines() if "still waiting" not in line] == []
    assert n_figures.exists(), "no figure was shown"
