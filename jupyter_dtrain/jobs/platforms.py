"""Targets on platforms: Azure ML, SageMaker and Kubernetes with Kubeflow. Their own libraries check the files.

No file has a value that ``--env`` gave. Facts that no notebook knows (a cluster, an image, a role) are settings.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.world import quantity

from .job import Job, Made, Setting, Target, choice

_AZURE: Final = ("pytorch", "mpi", "tensorflow")
_SAGEMAKER: Final = {"pytorch": "torch_distributed", "mpi": "mpi", "tensorflow": "parameter_server"}
_SMDISTRIBUTED: Final = "smdistributed"
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


def _python() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _servers(job: Job) -> int:
    return sum(role == "ps" for role in job.world.roles)


def make_azureml(job: Job) -> Made:
    """A command job in YAML."""
    kind = choice(job, "distribution", _AZURE, job.family)
    world, servers = job.world, _servers(job)
    distribution: dict[str, Any] = {"type": kind}
    instances = world.nodes
    if kind == "tensorflow":
        # Each task has an instance of its own, and TensorFlow's chief is the first of the workers.
        distribution |= {"worker_count": world.ranks - servers, "parameter_server_count": servers}
        instances = world.ranks
    else:
        distribution["process_count_per_instance"] = world.per_node
    environment = f"{job.name}.conda.yml"
    conda = {
        "name": job.label,
        "channels": ["conda-forge"],
        "dependencies": [f"python={_python()}", "pip", {"pip": job.packages.requirements()}],
    }
    document = {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "type": "command",
        "display_name": job.label,
        "code": ".",
        "command": f"python {job.script_name}",
        "environment": {"image": job.settings["image"], "conda_file": environment},
        "compute": f"azureml:{job.settings['compute']}",
        "resources": {"instance_count": instances},
        "distribution": distribution,
    }
    sets = "".join(f' --set environment_variables.{name}="${name}"' for name in world.env)
    command = f"az ml job create --file {job.command}{sets}"
    texts = {job.path.name: _comment(job, command) + to_yaml(document), environment: to_yaml(conda)}
    return Made(texts, command, ("Azure ML uploads all files in the folder of the script.",))


def _comment(job: Job, command: str) -> str:
    return f"# {job.world.words}. Exported by jupyter-dtrain. Start it with:\n#   {command}\n"


def make_sagemaker(job: Job) -> Made:
    """A program that starts a training job: with a ModelTrainer, or for parameter servers with an estimator."""
    kinds = (*dict.fromkeys(_SAGEMAKER.values()), _SMDISTRIBUTED)
    kind = choice(job, "distribution", kinds, _SAGEMAKER[job.family])
    world = job.world
    environment = f"{{name: os.environ[name] for name in {list(world.env)!r}}}" if world.env else "{}"
    requirements = f"{job.name}_requirements.txt"
    facts = {
        "name": job.label,
        "count": world.nodes,
        "processes": world.per_node,
        "script": job.script_name,
        "requirements": requirements,
        "environment": environment,
        "words": world.words,
        "instance": job.settings["instance"],
        "image": job.settings["image"],
        "role": job.settings["role"],
        "python": _python().replace(".", ""),
    }
    if kind == "parameter_server":
        facts["count"] = max(1, world.ranks - _servers(job))
        text, package = _ESTIMATOR, "sagemaker<3"
        servers = quantity(_servers(job), "parameter server")
        notes = [f"SageMaker puts a parameter server on each instance; the notebook had {servers}."]
    else:
        call = {
            "torch_distributed": "Torchrun(process_count_per_node={processes})",
            "mpi": "MPI(process_count_per_node={processes})",
            _SMDISTRIBUTED: "Torchrun(process_count_per_node={processes}, smp=SMP())",
        }[kind].format(**facts)
        names = {"Torchrun(": "Torchrun", "MPI(": "MPI", "SMP(": "SMP"}
        imported = ", ".join(sorted(name for start, name in names.items() if start in call))
        facts |= {"distributed": call, "imported": imported}
        text, package, notes = _TRAINER, "sagemaker-train", []
    notes.append(f"The launch file needs the package {package}: pip install '{package}'.")
    texts = {
        job.path.name: text.format(**facts),
        requirements: "\n".join(job.packages.requirements()) + "\n",
    }
    return Made(texts, f"python {job.command}", tuple(notes))


_TRAINER = '''"""Starts {script} on SageMaker: {words}. Exported by jupyter-dtrain."""

import os
from pathlib import Path

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.distributed import {imported}


def make_trainer(**more) -> ModelTrainer:
    """The trainer; ``more``: other arguments of ModelTrainer, such as sagemaker_session or input_data_config."""
    return ModelTrainer(
        base_job_name="{name}",
        training_image=os.environ.get("TRAINING_IMAGE", "{image}"),
        role=os.environ.get("SAGEMAKER_ROLE", "{role}"),
        source_code=SourceCode(
            source_dir=str(Path(__file__).parent), entry_script="{script}", requirements="{requirements}"
        ),
        compute=Compute(instance_type="{instance}", instance_count={count}),
        distributed={distributed},
        environment={environment},
        **more,
    )


if __name__ == "__main__":
    make_trainer().train()
'''

_ESTIMATOR = '''"""Starts {script} on SageMaker with parameter servers. Exported by jupyter-dtrain."""

import os
from pathlib import Path

from sagemaker.tensorflow import TensorFlow


def make_estimator(**more) -> TensorFlow:
    """The estimator; ``more``: other arguments of TensorFlow, such as sagemaker_session."""
    return TensorFlow(
        base_job_name="{name}",
        entry_point="{script}",
        source_dir=str(Path(__file__).parent),
        role=os.environ.get("SAGEMAKER_ROLE", "{role}"),
        image_uri=os.environ.get("TRAINING_IMAGE", "{image}"),
        instance_type="{instance}",
        instance_count={count},
        distribution={{"parameter_server": {{"enabled": True}}}},
        environment={environment},
        **more,
    )


if __name__ == "__main__":
    make_estimator().fit()
'''


def make_kubernetes(job: Job) -> Made:
    """A TrainJob or an MPIJob of Kubeflow's, with the script in it. Raises :class:`BadRequest` for TensorFlow."""
    if job.family == "tensorflow":
        raise BadRequest(
            "Kubeflow's TrainJob and MPIJob set no TF_CONFIG, by which TensorFlow finds the other ranks: export to "
            "azureml or sagemaker, which do."
        )
    kind = choice(job, "kind", _KINDS, "MPIJob" if job.family == "mpi" else "TrainJob")
    documents = _train_job(job) if kind == "TrainJob" else _mpi_job(job)
    command = f"kubectl create -f {job.command}"
    secret = f"{job.label}-env"
    values = "".join(f' --from-literal={name}="${name}"' for name in job.world.env)
    create = f"kubectl create secret generic {secret}{values}"
    notes = [f"The values of {', '.join(job.world.env)} come from a secret: {create}"] if job.world.env else []
    return Made({job.path.name: _comment(job, command) + to_yaml(*documents)}, command, tuple(notes))


def _variables(job: Job) -> dict[str, Any]:
    """The names that ``--env`` gave; their values are in a secret of the cluster."""
    secret = f"{job.label}-env"
    found = [{"name": one, "valueFrom": {"secretKeyRef": {"name": secret, "key": one}}} for one in job.world.env]
    return {"env": found} if found else {}


def _resources(job: Job) -> dict[str, Any]:
    gpus = job.world.gpus_per_node
    return {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}


def _install(job: Job) -> str:
    requirements = " ".join(f"'{one}'" for one in job.packages.requirements())
    return f"pip install --quiet {requirements}\n" if requirements and job.settings["install"] != "no" else ""


def _train_job(job: Job) -> list[dict[str, Any]]:
    # The script is in the command, as Kubeflow's own SDK does it: a TrainJob has no volumes of its own.
    mark = "THE_END_OF_THE_SCRIPT"
    line = f"{_install(job)}cat > {job.script_name} << '{mark}'\n{job.script}{mark}\nexec torchrun {job.script_name}\n"
    trainer: dict[str, Any] = {
        "numNodes": job.world.nodes,
        "numProcPerNode": job.world.per_node,
        "command": ["bash", "-c"],
        "args": [line],
        **_variables(job),
    }
    if job.settings["image"]:
        trainer["image"] = job.settings["image"]
    if resources := _resources(job):
        trainer["resourcesPerNode"] = resources
    return [
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": job.label},
            "spec": {"runtimeRef": {"name": job.settings["runtime"]}, "trainer": trainer},
        }
    ]


def _mpi_job(job: Job) -> list[dict[str, Any]]:
    world = job.world
    files = f"{job.label}-script"
    passing = "".join(f" -x {name}" for name in world.env)
    line = f"mpirun --allow-run-as-root -n {world.ranks}{passing} python {_MOUNT}/{job.script_name}\n"
    mounted = {"volumeMounts": [{"name": "script", "mountPath": _MOUNT}]}
    volumes = [{"name": "script", "configMap": {"name": files}}]

    def replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
        named = {"name": "mpi", "image": job.settings["image"] or "mpioperator/mpi-pi:openmpi"}
        return {
            "replicas": count,
            "template": {"spec": {"containers": [{**named, **container, **mounted}], "volumes": volumes}},
        }

    worker: dict[str, Any] = _variables(job)
    if resources := _resources(job):
        worker["resources"] = resources
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
                "mpiReplicaSpecs": {
                    "Launcher": replicas(1, {"command": ["bash", "-c"], "args": [line], **_variables(job)}),
                    "Worker": replicas(world.nodes, worker),
                },
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
        ),
    ),
    Target(
        "sagemaker",
        "the script, and a program that starts it on SageMaker",
        "_launch.py",
        make_sagemaker,
        (
            Setting("instance", "ml.g5.12xlarge", "the type of the instances"),
            Setting("image", "", "the training image (default: the variable TRAINING_IMAGE)"),
            Setting("role", "", "the IAM role (default: the variable SAGEMAKER_ROLE)"),
            Setting(
                "distribution",
                "",
                "torch_distributed, smdistributed, mpi or parameter_server (default: by the cells' frameworks)",
            ),
        ),
        "sagemaker",
    ),
    Target(
        "kubernetes",
        "a TrainJob or an MPIJob of Kubeflow's, with the script in it",
        ".yaml",
        make_kubernetes,
        (
            Setting("kind", "", "TrainJob or MPIJob (default: by the cells' frameworks)"),
            Setting("image", "", "the image (default: that of the runtime)"),
            Setting("runtime", "torch-distributed", "the runtime of a TrainJob"),
            Setting("install", "yes", "no: the image has all packages"),
        ),
    ),
)
