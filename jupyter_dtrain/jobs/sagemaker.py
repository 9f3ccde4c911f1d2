"""The target on SageMaker: a program that starts the job with Amazon's own library, which checks what it sends.

A program has no value that ``--env`` gave. Facts that no notebook knows (an image, a role) are settings.
"""

from __future__ import annotations

import json
import re
from typing import Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.world import quantity

from .data import inputs_like, places_of
from .job import Job, Made, Setting, Target, choice

_SAGEMAKER: Final = {"pytorch": "torch_distributed", "mpi": "mpi", "tensorflow": "parameter_server"}
_SMDDP: Final = "smddp"
_SMP: Final = "smp"
_BUILT_IN: Final = ("torch", "torchvision", "torchaudio")
"""Packages that an image with SageMaker's own libraries has in the only version that these work with."""
_SMDDP_INSTANCES: Final = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
_SMDDP_GPUS: Final = 8


def make_sagemaker(job: Job) -> Made:
    """A program that starts a training job: with a ModelTrainer, or with an estimator of SageMaker's second version.

    The second version alone has parameter servers and the launcher of the data parallel library.
    """
    if job.settings["distribution"] == "smdistributed":
        raise BadRequest(
            f"smdistributed is two libraries: give --distribution {_SMDDP} for data parallel, or {_SMP} for model "
            "parallel."
        )
    kinds = ("torch_distributed", _SMDDP, _SMP, "mpi", "parameter_server")
    kind = choice(job, "distribution", kinds, _SAGEMAKER[job.family])
    world = job.world
    environment = f"{{name: os.environ[name] for name in {list(world.env)!r}}}" if world.env else "{}"
    estimator = kind in ("parameter_server", _SMDDP)
    # The images that an estimator starts install what this very file names.
    requirements = "requirements.txt" if estimator else f"{job.name}_requirements.txt"
    inputs, outputs = places_of(job, "inputs", "s3://bucket/digits"), places_of(job, "outputs")
    if len(outputs) > 1:
        raise BadRequest("SageMaker keeps one folder of a job, its model: give one name with --outputs.")
    paths = {one.name: f"/opt/ml/input/data/{one.name}/{one.file}".rstrip("/") for one in inputs}
    paths |= {one.name: "/opt/ml/model" for one in outputs}
    facts = {
        "name": job.label,
        "count": world.nodes,
        "processes": world.per_node,
        "script": job.script_name,
        "requirements": requirements,
        "environment": environment,
        "words": world.words,
        "instance": job.settings["instance"] or (_SMDDP_INSTANCES[0] if kind == _SMDDP else "ml.g5.12xlarge"),
        "image": job.settings["image"],
        "role": job.settings["role"],
        "seconds": _seconds(job, "time"),
        "paths": json.dumps(paths),
    }
    address = outputs[0].address if outputs else ""
    notes: list[str] = []
    if estimator:
        facts |= {
            "inputs": json.dumps({one.name: one.address for one in inputs}) if inputs else "None",
            "output": f"\n        output_path={json.dumps(address)}," if address else "",
        }
        text, package = _ESTIMATOR, "sagemaker<3"
        if kind == _SMDDP:
            facts |= {
                "module": "pytorch",
                "estimator": "PyTorch",
                "distribution": '{"smdistributed": {"dataparallel": {"enabled": True}}}',
                "more": "",
            }
            notes += _about_smddp(job, facts["instance"])
        else:
            facts |= {
                "module": "tensorflow",
                "estimator": "TensorFlow",
                "distribution": '{"parameter_server": {"enabled": True}}',
                "more": "\n        model_dir=False,",
                "count": max(1, world.ranks - (servers := world.roles.count("ps"))),
            }
            had = quantity(servers, "parameter server")
            notes.append(f"SageMaker puts a parameter server on each instance; the notebook had {had}.")
    else:
        call = {
            "torch_distributed": "Torchrun(process_count_per_node={processes})",
            "mpi": "MPI(process_count_per_node={processes})",
            _SMP: "Torchrun(process_count_per_node={processes}, smp=SMP())",
        }[kind].format(**facts)
        names = {"Torchrun(": "Torchrun", "MPI(": "MPI", "SMP(": "SMP"}
        channels = [f'InputData(channel_name="{one.name}", data_source={json.dumps(one.address)})' for one in inputs]
        data = "".join(f"\n            {one}," for one in channels)
        facts |= {
            "distributed": call,
            "imported": ", ".join(sorted(name for start, name in names.items() if start in call)),
            "configs": ", ".join(
                [
                    "Compute",
                    *(["InputData"] if inputs else []),
                    *(["OutputDataConfig"] if address else []),
                    "SourceCode",
                    "StoppingCondition",
                ]
            ),
            "inputs": f"\n        input_data_config=[{data}\n        ]," if inputs else "",
            "output": f"\n        output_data_config=OutputDataConfig(s3_output_path={json.dumps(address)}),"
            if address
            else "",
        }
        text, package = _TRAINER, "sagemaker-train"
    left_out = _BUILT_IN if kind in (_SMDDP, _SMP) else ()
    packages = [one for one in job.packages.requirements() if one.partition("==")[0] not in left_out]
    if left_out:
        notes.append(f"{requirements} has no PyTorch: the image must have the one that its library was built for.")
    if not outputs:
        notes.append("SageMaker keeps what the script writes into /opt/ml/model.")
    notes.append(f"The launch file needs the package {package}: pip install '{package}'.")
    texts = {job.path.name: text.format(**facts), requirements: "\n".join(packages) + "\n"}
    return Made(texts, f"python {job.command}", tuple(notes))


def _about_smddp(job: Job, instance: object) -> list[str]:
    """What a job must have for SageMaker's data parallel library to speed it up."""
    found = []
    if not any(re.search(r"[\"']smddp[\"']", code) for code in job.codes):
        found.append(
            "No cell chooses the backend smddp, so NCCL would do all communication: import "
            'smdistributed.dataparallel.torch.torch_smddp, then init_process_group("smddp"), where the module is found.'
        )
    if instance not in _SMDDP_INSTANCES:
        found.append(f"The library is for {' and '.join(_SMDDP_INSTANCES)}, not for {instance}.")
    elif job.world.per_node != _SMDDP_GPUS:
        ranks = quantity(job.world.per_node, "rank")
        found.append(
            f"It starts {_SMDDP_GPUS} processes on each instance, one for each GPU; the notebook had {ranks} on a node."
        )
    return found


def _seconds(job: Job, setting: str) -> int:
    """A time as Slurm takes it: minutes, hours:minutes:seconds or days-hours. Raises :class:`BadRequest`."""
    value = job.settings[setting]
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", value)
    if found is None:
        raise BadRequest(f"The setting {setting} must be a time such as 90 (minutes), 12:00:00 or 2-0, not {value!r}.")
    days, *parts = (None if one is None else int(one) for one in found.groups())
    first, second, third = parts
    if days is not None or third is not None:
        hours, minutes, seconds = first, second, third
    else:
        hours, minutes, seconds = 0, first, second
    return (((days or 0) * 24 + (hours or 0)) * 60 + (minutes or 0)) * 60 + (seconds or 0)


_TRAINER = '''"""Starts {script} on SageMaker: {words}. Exported by jupyter-dtrain."""

import os
from pathlib import Path

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import {configs}
from sagemaker.train.distributed import {imported}


def make_trainer(**more) -> ModelTrainer:
    """The trainer; ``more``: other arguments of ModelTrainer, such as sagemaker_session or checkpoint_config."""
    return ModelTrainer(
        base_job_name="{name}",
        training_image=os.environ.get("TRAINING_IMAGE", "{image}"),
        role=os.environ.get("SAGEMAKER_ROLE", "{role}"),
        source_code=SourceCode(
            source_dir=str(Path(__file__).parent), entry_script="{script}", requirements="{requirements}"
        ),
        compute=Compute(instance_type="{instance}", instance_count={count}),
        distributed={distributed},
        stopping_condition=StoppingCondition(max_runtime_in_seconds={seconds}),{inputs}{output}
        hyperparameters={paths},
        environment={environment},
        **more,
    )


if __name__ == "__main__":
    make_trainer().train()
'''

_ESTIMATOR = '''"""Starts {script} on SageMaker with {estimator}'s estimator. Exported by jupyter-dtrain."""

import os
from pathlib import Path

from sagemaker.{module} import {estimator}

INPUTS = {inputs}


def make_estimator(**more) -> {estimator}:
    """The estimator; ``more``: other arguments of {estimator}, such as sagemaker_session."""
    return {estimator}(
        base_job_name="{name}",
        entry_point="{script}",
        source_dir=str(Path(__file__).parent),
        role=os.environ.get("SAGEMAKER_ROLE", "{role}"),
        image_uri=os.environ.get("TRAINING_IMAGE", "{image}"),
        instance_type="{instance}",
        instance_count={count},
        distribution={distribution},
        max_run={seconds},{output}{more}
        hyperparameters={paths},
        environment={environment},
        **more,
    )


if __name__ == "__main__":
    make_estimator().fit(INPUTS)
'''


TARGETS = (
    Target(
        "sagemaker",
        "the script, and a program that starts it on SageMaker",
        "_launch.py",
        make_sagemaker,
        (
            Setting("instance", "", "the type of the instances (default: ml.g5.12xlarge, with smddp ml.p4d.24xlarge)"),
            Setting("image", "", "the training image (default: the variable TRAINING_IMAGE)"),
            Setting("role", "", "the IAM role (default: the variable SAGEMAKER_ROLE)"),
            Setting(
                "distribution",
                "",
                "torch_distributed, smddp (smdistributed data parallel), smp (smdistributed model parallel), mpi or "
                "parameter_server (default: by the cells' frameworks)",
            ),
            Setting("time", "24:00:00", "the longest time that the job may take"),
            inputs_like("s3://bucket/digits"),
            Setting(
                "outputs",
                "",
                "the folder that the script writes, by its argument, such as out or out=s3://bucket/models, to keep "
                "(default: /opt/ml/model)",
            ),
        ),
        "sagemaker",
    ),
)
