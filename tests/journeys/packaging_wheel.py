"""The wheel is built, installed into a folder of its own, and used from there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
USE = """
import numpy as np, skfleet
from importlib.metadata import requires, version
from pathlib import Path
from skfleet import Fleet
from skfleet.estimators import Ridge
print("from the wheel:", Path(skfleet.__file__).is_relative_to(Path.cwd() / "site"))
print("version:", version("scikit-fleet") == skfleet.__version__)
extras = {line.split("extra == ")[1] for line in requires("scikit-fleet") if "extra ==" in line}
print("extras:", *sorted(extras))
X = np.arange(9.0)[:, None]
with Fleet(n_workers=2, processes=False):
    print("coefficient:", Ridge(alpha=1e-9).fit(X, X[:, 0]).coef_.round(3))
skfleet.show_versions()
"""


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], check=True)


if __name__ == "__main__":
    pip("wheel", "--no-deps", "--wheel-dir", "dist", str(ROOT))
    (wheel,) = Path("dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    print("py.typed:", "skfleet/py.typed" in names)
    kernels = ("blocks/philox.cu", "estimators/cluster/nearest.cu", "glm/descent.cu")
    print("kernels:", {f"skfleet/{name}" for name in kernels} <= set(names))
    print("license:", any(name.endswith("LICENSE") for name in names))
    print("nothing else:", sorted({name.split("/")[0].split("-")[0] for name in names}))
    pip("install", "--no-deps", "--target", "site", str(wheel))
    environment = {**os.environ, "PYTHONPATH": str(Path("site").absolute())}
    subprocess.run([sys.executable, "-c", USE], env=environment, check=True)
