"""Targets whose files are YAML: Azure ML, and Kubernetes with Kubeflow. Their own libraries check the files.

No file has a value that ``--env`` gave. Facts that no notebook knows (a cluster, an image, a role) are settings.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from jupyter_dtrain.core.errors import BadRequest

from .data import inputs_like, places_of
from .job import GPUS_OF_NODE, Job, Made, Setting, Target, choice, gpus_of_node

_AZURE: Final = ("pytorch", "mpi", "tensorflow")
_KINDS: Final = ("TrainJob", "MPIJob")
_MOUNT: Final = "/job"


def to_yaml(*documents: Any) -> str:
    """``documents`` as YAML, in the order in which they were made; text of several lines as a block."""
    try:
        import yaml
    except ImportError:
        raise BadRequest("This target's files are YAML: pip install 'jupyter-dtrain[jobs]' first.") from None

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
        """Writes each value where it stands."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    return str(yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True))


def make_azureml(job: Job) -> Made:
    """A command job in YAML."""
    kind = choice(job, "distribution", _AZURE, job.family)
    world, servers = job.world, job.world.roles.count("ps")
    distribution: dict[str, Any] = {"type": kind}
    instances = world.nodes
    if kind == "tensorflow":
        # Each task has an instance of its own, and TensorFlow's chief is the first of the workers.
        distribution |= {"worker_count": world.ranks - servers, "parameter_server_count": servers}
        instances = world.ranks
    else:
        distribution["process_count_per_instance"] = world.per_node
    read = places_of(job, "inputs", "azureml:digits:1")
    written = places_of(job, "outputs")
    inputs = {
        one.name: {"type": "uri_file" if one.file else "uri_folder", "path": one.address, "mode": "ro_mount"}
        for one in read
    }
    outputs = {
        one.name: {"type": "uri_folder", **({"path": one.address} if one.address else {}), "mode": "rw_mount"}
        for one in written
    }
    paths = [f"{one.flag} ${{{{inputs.{one.name}}}}}" for one in read]
    paths += [f"{one.flag} ${{{{outputs.{one.name}}}}}" for one in written]
    environment = f"{job.name}.conda.yml"
    conda = {
        "name": job.label,
        "channels": ["conda-forge"],
        "dependencies": [
            f"python={sys.version_info[0]}.{sys.version_info[1]}",
            "pip",
            {"pip": job.packages.requirements()},
        ],
    }
    document = {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "type": "command",
        "display_name": job.label,
        "code": ".",
        "command": " ".join([f"python {job.script_name}", *paths]),
        **({"inputs": inputs} if inputs else {}),
        **({"outputs": outputs} if outputs else {}),
        "environment": {"image": job.settings["image"], "conda_file": environment},
        "compute": f"azureml:{job.settings['compute']}",
        "resources": {"instance_count": instances},
        "distribution": distribution,
    }
    sets = "".join(f' --set environment_variables.{name}="${name}"' for name in world.env)
    command = f"az ml job create --file {job.command}{sets}"
    texts = {job.path.name: _comment(job, command) + to_yaml(document), environment: to_yaml(conda)}
    notes = ["Azure ML uploads all files in the folder of the script."]
    if not outputs:
        notes.append("It keeps what the script writes into the folder outputs; --outputs NAME names another.")
    return Made(texts, command, tuple(notes))


def _comment(job: Job, command: str) -> str:
    return f"# {job.world.words}. Exported by jupyter-dtrain. Start it with:\n#   {command}\n"


def make_kubernetes(job: Job) -> Made:
    """A TrainJob or an MPIJob of Kubeflow's, with the script in it. Raises :class:`BadRequest` for TensorFlow."""
    if job.family == "tensorflow":
        raise BadRequest(
            "Kubeflow's TrainJob and MPIJob set no TF_CONFIG, by which TensorFlow finds the other ranks: export to "
            "azureml or sagemaker, which do."
        )
    kind = choice(job, "kind", _KINDS, "MPIJob" if job.family == "mpi" else "TrainJob")
    gpus, notes = (job.settings["gpus_per_node"], []) if job.settings["gpus_per_node"] else gpus_of_node(job)
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus != "0" else {}
    if not gpus.isdecimal():
        raise BadRequest(f"Kubernetes counts GPUs, whatever their kind: give --gpus-per-node 8, not {gpus!r}.")
    documents = _train_job(job, resources) if kind == "TrainJob" else _mpi_job(job, resources)
    command = f"kubectl create -f {job.command}"
    secret = f"{job.label}-env"
    values = "".join(f' --from-literal={name}="${name}"' for name in job.world.env)
    create = f"kubectl create secret generic {secret}{values}"
    if job.world.env:
        notes = [*notes, f"The values of {', '.join(job.world.env)} come from a secret: {create}"]
    return Made({job.path.name: _comment(job, command) + to_yaml(*documents)}, command, tuple(notes))


def _variables(job: Job) -> dict[str, Any]:
    """The names that ``--env`` gave; their values are in a secret of the cluster."""
    secret = f"{job.label}-env"
    found = [{"name": one, "valueFrom": {"secretKeyRef": {"name": secret, "key": one}}} for one in job.world.env]
    return {"env": found} if found else {}


def _install(job: Job) -> str:
    """The command that installs what the job imports; empty where the image has all of it."""
    requirements = " ".join(f"'{one}'" for one in job.packages.requirements())
    return f"pip install --quiet {requirements}" if requirements and job.settings["install"] != "no" else ""


def _train_job(job: Job, resources: dict[str, Any]) -> list[dict[str, Any]]:
    # The script is in the command, as Kubeflow's own SDK does it: a TrainJob has no volumes of its own.
    mark = "THE_END_OF_THE_SCRIPT"
    install = f"{found}\n" if (found := _install(job)) else ""
    line = f"{install}cat > {job.script_name} << '{mark}'\n{job.script}{mark}\nexec torchrun {job.script_name}\n"
    trainer: dict[str, Any] = {
        "numNodes": job.world.nodes,
        "numProcPerNode": job.world.per_node,
        "command": ["bash", "-c"],
        "args": [line],
        **_variables(job),
    }
    if job.settings["image"]:
        trainer["image"] = job.settings["image"]
    if resources:
        trainer["resourcesPerNode"] = resources
    return [
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": job.label},
            "spec": {"runtimeRef": {"name": job.settings["runtime"]}, "trainer": trainer},
        }
    ]


def _mpi_job(job: Job, resources: dict[str, Any]) -> list[dict[str, Any]]:
    world = job.world
    image = job.settings["image"]
    if not image:
        raise BadRequest(
            "An MPIJob needs an image with Python and Open MPI: name yours with --image. Its ranks run "
            "`pip install` for what the cells import, unless --install no says that the image has all of it."
        )
    files = f"{job.label}-script"
    passing = "".join(f" -x {name}" for name in world.env)
    mpirun = "mpirun --allow-run-as-root"
    # The workers are there before the launcher, and stay: what one process installs on each, the ranks find.
    lines = [f"{mpirun} -n {world.nodes} --map-by ppr:1:node {install}"] if (install := _install(job)) else []
    lines = ["set -e", *lines, f"exec {mpirun} -n {world.ranks}{passing} python {_MOUNT}/{job.script_name}", ""]
    mounted = {"volumeMounts": [{"name": "script", "mountPath": _MOUNT}]}
    volumes = [{"name": "script", "configMap": {"name": files}}]

    def replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
        return {
            "replicas": count,
            "template": {
                "spec": {"containers": [{"name": "mpi", "image": image, **container, **mounted}], "volumes": volumes}
            },
        }

    worker = _variables(job) | ({"resources": resources} if resources else {})
    launcher = {"command": ["bash", "-c"], "args": ["\n".join(lines)], **_variables(job)}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": files},
            "data": {job.script_name: job.script},
        },
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "MPIJob",
            "metadata": {"name": job.label},
            "spec": {
                "slotsPerWorker": world.per_node,
                "runPolicy": {"cleanPodPolicy": "Running"},
                "mpiReplicaSpecs": {"Launcher": replicas(1, launcher), "Worker": replicas(world.nodes, worker)},
            },
        },
    ]


TARGETS = (
    Target(
        "azureml",
        "the script, and a command job of Azure ML",
        ".yml",
        make_azureml,
        (
            Setting("compute", "gpu-cluster", "the name of the cluster"),
            Setting("image", "mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04:latest", "the image of the environment"),
            Setting("distribution", "", "pytorch, mpi or tensorflow (default: by the cells' frameworks)"),
            inputs_like("azureml:digits:1"),
            Setting(
                "outputs",
                "",
                "folders that the script writes, by its arguments, such as out or out=azureml://…, to keep (default: "
                "the folder outputs)",
            ),
        ),
    ),
    Target(
        "kubernetes",
        "a TrainJob or an MPIJob of Kubeflow's, with the script in it",
        ".yaml",
        make_kubernetes,
        (
            Setting("kind", "", "TrainJob or MPIJob (default: by the cells' frameworks)"),
            Setting(
                "image", "", "the image; an MPIJob needs one, with Python and Open MPI (default: a TrainJob's runtime)"
            ),
            Setting("runtime", "torch-distributed", "the runtime of a TrainJob"),
            Setting("install", "yes", "yes: pip installs what the cells import, on each node; no: the image has it"),
            GPUS_OF_NODE,
        ),
    ),
)
