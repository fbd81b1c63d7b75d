"""Checks of the resources for Kubernetes, without a cluster: nothing here has run on one.

The files of the folder ``kubernetes`` fit Kubernetes' schemas and those of Dask's operator, and
``cluster.yaml`` is what `KubeCluster` makes of OPTIONS. Run it with
``python examples/deploy/kube_cluster.py``; ``--write`` writes ``cluster.yaml`` anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kubernetes_validate
import yaml
from credentials import write_credentials
from dask_kubernetes.operator import make_cluster_spec
from distributed.cli.dask_scheduler import main as scheduler_command
from distributed.cli.dask_worker import main as worker_command
from jsonschema import Draft202012Validator
from trial import Trial

FOLDER = Path(__file__).parent / "kubernetes"
COMMENT = "# What KubeCluster(**OPTIONS) of kube_cluster.py makes, to be applied by kubectl.\n"

# of dask_kubernetes.operator.KubeCluster, and of make_cluster_spec
OPTIONS: dict[str, Any] = {
    "name": "fleet",
    "image": "registry.example.com/fleet:1",
    "n_workers": 4,
    "worker_command": "dask worker --nthreads 1 --memory-limit 3.5GiB --resources CPU=1",
    "env": {"OMP_NUM_THREADS": "1"},
    "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
}


def resources_of(path: Path) -> list[dict[str, Any]]:
    """Return the resources in a file."""
    return list(yaml.safe_load_all(path.read_text()))


def operator_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas of the operator's own resources by kind, as its chart installs them."""
    chart = files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator/crds"
    definitions = [yaml.safe_load(file.read_text()) for file in chart.iterdir()]
    return {
        one["spec"]["names"]["kind"]: one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for one in definitions
    }


def check(resource: dict[str, Any], schemas: dict[str, dict[str, Any]]) -> None:
    """Raise unless a resource fits its schema; of the operator's, pods and services too."""
    if resource["kind"] not in schemas:
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)
        return
    Draft202012Validator(schemas[resource["kind"]]).validate(resource)
    for component in ("scheduler", "worker"):
        own = resource["spec"].get(component, {})
        metadata = {"name": component}
        if not isinstance(own, dict):  # of an autoscaler, which names a cluster
            continue
        for kind, part in {"Pod": "spec", "Service": "service"}.items():
            if part in own:
                plain = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": own[part]}
                check(plain, {})


def containers_of(resource: Any) -> Iterator[dict[str, Any]]:
    """Yield the containers at any depth of a resource."""
    if isinstance(resource, dict):
        yield from resource.get("containers", ())
        for value in resource.values():
            yield from containers_of(value)


def parsed(arguments: list[str], credentials: Path) -> dict[str, Any]:
    """Return the parameters of a command of Dask's, or raise for one that it does not have."""
    words = " ".join(arguments).replace("dask-scheduler", "dask scheduler").split()
    words = [word.replace("/credentials", str(credentials)) for word in words]  # which must exist
    command = {"scheduler": scheduler_command, "worker": worker_command}[words[1]]
    # an option that is unknown would be passed on, to be refused when the command runs
    context = command.make_context(words[1], words[2:], ignore_unknown_options=False)
    return context.params


def main() -> None:
    """Check all files, and what the operator's library makes of the options."""
    cluster = make_cluster_spec(**OPTIONS)
    if "--write" in sys.argv:
        text = yaml.safe_dump(json.loads(json.dumps(cluster)), sort_keys=False)  # no aliases
        (FOLDER / "cluster.yaml").write_text(COMMENT + text)
    packages = ["dask-kubernetes", "kubernetes-validate", "jsonschema"]
    with Trial("kubernetes", packages) as trial, TemporaryDirectory() as temporary:
        credentials = Path(temporary, "credentials")
        write_credentials(credentials)
        trial.log("Nothing of this has run on a cluster of Kubernetes.")
        schemas = operator_schemas()
        for path in sorted(FOLDER.glob("*.yaml")):
            kinds = []
            for resource in resources_of(path):
                check(resource, schemas)
                kinds.append(resource["kind"])
                for container in containers_of(resource):
                    options = parsed(container["args"], credentials)
                    if container["name"] == "worker":
                        is_labelled = options["resources"] == "CPU=1"
                        trial.check(f"{path.name}: workers labelled CPU=1", is_labelled)
            trial.log(f"{path.name}: {', '.join(kinds)} as the schemas say")
        is_same = resources_of(FOLDER / "cluster.yaml") == [cluster]
        trial.check("cluster.yaml is what make_cluster_spec makes of the options", is_same)


if __name__ == "__main__":
    main()
