"""Random examples: few and always the same in `make test`, many and new ones in `make test-all`."""

import os

from hypothesis import settings

ALL = bool(os.environ.get("SKFLEET_ALL_EXAMPLES"))
settings.register_profile("skfleet", derandomize=not ALL)
settings.load_profile("skfleet")


def n_examples(quick, full):
    """Return `full` where SKFLEET_ALL_EXAMPLES is set, as `make test-all` does."""
    return full if ALL else quick
