"""A client of a cluster that trains with a checkpoint, and pauses once: it may be killed there."""

import logging
import sys
from pathlib import Path

import numpy as np
from distributed import Client
from fits import bytes_of, fit
from kills import Pause

from skfleet.engine._dask import _process_group

PAUSE_ROUND, PAUSE_SECONDS = 13, 600


def main(address, library, directory):
    """Fit on the rows of the directory, and write the model to it."""
    logging.basicConfig(level=logging.INFO)
    _process_group.machine_of = str  # a rank on each worker
    with np.load(directory / "rows.npz") as rows, Client(address):
        pause = Pause(PAUSE_ROUND, directory, PAUSE_SECONDS)
        model = fit(library, rows, pause, checkpoint=str(directory / "checkpoint"))
    (directory / "model").write_bytes(bytes_of(model))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
