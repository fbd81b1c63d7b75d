"""Numbers of random examples: few in `make test`, the full number in `make test-all`."""

import os


def n_examples(quick, full):
    """Return `full` where SKFLEET_ALL_EXAMPLES is set, as `make test-all` does."""
    return full if os.environ.get("SKFLEET_ALL_EXAMPLES") else quick
