"""A cluster that was started from the command line is joined, used, and left as it was."""

import json
import re
import subprocess
import time
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV


def dask(log, *arguments):
    """Start what a user starts in a terminal of its own."""
    with Path(log).open("w") as file:
        return subprocess.Popen(["dask", *arguments], stdout=file, stderr=file)


if __name__ == "__main__":
    place = ["--scheduler-file", "cluster.json"]
    local = ["--host", "127.0.0.1", "--dashboard-address", ":0"]
    started = [dask("scheduler.log", "scheduler", "--port", "0", *local, *place)]
    started += [
        dask(f"worker-{i}.log", "worker", "--nthreads", "1", *local, *place) for i in range(2)
    ]
    while not Path("cluster.json").exists():
        time.sleep(0.1)
    address = json.loads(Path("cluster.json").read_text())["address"]

    X, y = load_digits(return_X_y=True)
    for n_times in (1, 2):
        with Fleet(address) as client:
            client.wait_for_workers(2)
            search = GridSearchCV(SVC(), {"C": [0.1, 1, 10]}, cv=3).fit(X, y)
            print(f"fleet {n_times}: {len(client.nthreads())} workers, {search.best_params_}")
    print("still there:", all(process.poll() is None for process in started))

    for process in reversed(started):
        process.terminate()
        process.wait(30)
    for log in sorted(Path().glob("*.log")):
        loud = re.findall(r"(?m)^.*(?:WARNING|ERROR|Traceback|Error).*$", log.read_text())
        print(log, loud or "says nothing loud")
