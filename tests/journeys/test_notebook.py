"""A notebook that is executed: what stands under its cells."""

import os
import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

SOURCE = Path(__file__).parents[2] / "src"
SECONDS = 240

# A name, and the last line of a cell is what it shows.
CELLS = {
    "fleet": """
from skfleet import Fleet
fleet = Fleet(n_workers=2, threads_per_worker=1, processes=False)
fleet""",
    "client": "fleet.client",
    "unfitted": """
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV
X, y = load_iris(return_X_y=True)
forest = RandomForestClassifier(random_state=0)
search = GridSearchCV(forest, {"n_estimators": [2, 5, 10], "max_depth": [2, 4]}, cv=3)
search""",
    "fitted": "search.fit(X, y)",
    "adaptive": """
from sklearn.linear_model import SGDClassifier
space = {"alpha": [1e-4, 1e-3, 1e-2]}
HyperbandSearchCV(SGDClassifier(random_state=0), space, max_iter=4, random_state=0).fit(X, y)""",
    "lazy": """
import dask.array as da
from skfleet.estimators import KMeans
KMeans(n_clusters=3, random_state=0).fit(da.from_array(X, chunks=(50, 4)))""",
    "closed": "fleet.close()\nfleet",
}

pytestmark = pytest.mark.slow


def execute(cells, folder):
    """Execute a notebook in a kernel of its own; return it, and the data under each cell."""
    sources = [source.strip() for source in cells.values()]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, sources)])
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": path})
    results = {}
    for name, cell in zip(cells, notebook.cells, strict=True):
        (results[name],) = (o.data for o in cell.outputs if o.output_type == "execute_result")
    return notebook, results


@pytest.mark.filterwarnings("ignore")  # of the libraries that talk to the kernel
def test_outputs_of_a_notebook(tmp_path):
    notebook, results = execute(CELLS, str(tmp_path))
    text = {name: data["text/plain"] for name, data in results.items()}
    html = {name: data["text/html"] for name, data in results.items()}
    assert all("error" not in o.output_type for cell in notebook.cells for o in cell.outputs)
    assert re.match(r"Fleet\(2 workers, 2 threads, \S+ GB, inproc://\S+", text["fleet"])
    assert html["fleet"].count("<tr>") >= 3
    assert "Memory in use" in html["fleet"]
    assert "Client" in html["client"]
    assert text["closed"] == "Fleet(closed)"
    assert "closed" in html["closed"]
    assert text["fitted"] == text["unfitted"]
    assert html["unfitted"].startswith("<style>")
    for name in ("fitted", "adaptive"):
        table, diagram = html[name].split("</table>", 1)
        assert table.startswith("<table")
        assert "Best parameters" in table
        assert diagram.startswith("<style>")
        assert "sk-top-container" in diagram
    assert "12 of 18" in html["fitted"]
    assert "labels_" in html["lazy"]
    assert "Array[int32](150,)" in html["lazy"]
