"""The examples of the README, as a reader copies them into a script."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SESSIONS = [block for block in BLOCKS if block.startswith(">>>")]
SCRIPTS = [block for block in BLOCKS if not block.startswith(">>>")]


@pytest.mark.parametrize("session", SESSIONS)
def test_copied_examples_print_what_is_shown(session):
    """Without its prompts an expression shows nothing, so that `print` is what shows."""
    examples = doctest.DocTestParser().get_examples(session)
    shown = [example for example in examples if example.want]
    assert shown
    for example in shown:
        lines = [line for line in example.source.splitlines() if line.strip().startswith("print(")]
        assert len(lines) == len(example.want.strip().splitlines())


def test_scripts_start_processes_under_a_guard():
    assert SCRIPTS
    for script in SCRIPTS:
        assert "Fleet()" in script
        assert 'if __name__ == "__main__":' in script


@pytest.mark.slow
def test_scripts_print_what_the_text_says(tmp_path):
    for script in SCRIPTS:
        file = tmp_path / "script.py"
        file.write_text(script)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        run = subprocess.run(
            [sys.executable, str(file)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout
        assert f"It prints `{run.stdout.strip()}`" in README
        # a loaded machine takes longer to start workers than goes without saying
        lines = [line for line in run.stderr.splitlines() if "still waiting" not in line]
        assert lines == []
