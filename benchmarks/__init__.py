"""The benchmarks. Modules find one another by their own names, in scripts and under asv."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
