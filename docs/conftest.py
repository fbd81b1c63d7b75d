"""The examples of the pages are run; scripts and settings of the build are not."""

import pytest

collect_ignore_glob = ["*.py", "_*", "auto_examples"]


@pytest.fixture(autouse=True)
def files_of_the_home_page(request, doctest_namespace, tmp_path):
    """Make the folder of Parquet files that the home page reads."""
    if request.node.name == "index.md" and request.path.parent.name == "docs":
        from sklearn.datasets import load_breast_cancer

        frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "y"})
        frame.to_parquet(tmp_path / "rows.parquet")
        doctest_namespace["folder"] = tmp_path
