"""The files that DeepSpeed's own launcher reads: a hostfile, its line, and the configuration that the cells write down.

The script keeps its configuration; the file is for tools that read one, such as ``ds_report`` or an estimator. Values
that the cells compute are not in it, and a note names them.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import Any, Final

from jupyter_dtrain.core.errors import BadRequest

from .job import Job, Made, Setting, Target
from .launchers import HERE, program, this_python
from .notebook import listed

PACKAGE: Final = "deepspeed"
_TELLING: Final = frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"})
_UNKNOWN: Final = object()


def configuration_in(codes: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """The last configuration that is written in the cells, and the keys whose values they compute."""
    found: tuple[dict[str, Any], list[str]] = {}, []
    for code in codes:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Dict):
                keys = {one.value for one in node.keys if isinstance(one, ast.Constant)}
                if keys & _TELLING:
                    computed: list[str] = []
                    found = _literal(node, "", computed), computed
    return found


def _literal(node: ast.expr, place: str, computed: list[str]) -> Any:
    """The value of a literal without what is computed in it, whose keys are added to ``computed``."""
    if isinstance(node, ast.Dict):
        values = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                computed.append(f"{place}**")
                continue
            one = _literal(value, f"{place}{key.value}.", computed)
            if one is not _UNKNOWN:
                values[key.value] = one
        return values
    try:
        return ast.literal_eval(node)
    except ValueError:
        computed.append(place.rstrip("."))
        return _UNKNOWN


def make_deepspeed(job: Job) -> Made:
    """Hostfile, configuration and launch line. Raises :class:`BadRequest` where no cell imports DeepSpeed."""
    if PACKAGE not in job.packages.roots:
        raise BadRequest("No cell imports deepspeed: export to torchrun, mpi or slurm instead.")
    world = job.world
    if world.gpus_per_rank:
        raise BadRequest(
            "DeepSpeed's launcher gives each process one GPU, and the world has --gpus-per-rank: export to torchrun, "
            "mpi or slurm instead."
        )
    hosts = [one for one in job.settings["hosts"].split(",") if one]
    if not hosts:
        hosts = ["localhost"] if world.nodes == 1 else [f"node{number}" for number in range(1, world.nodes + 1)]
    if len(hosts) != world.nodes:
        raise BadRequest(f"The job has {world.nodes} nodes, and the setting hosts names {len(hosts)}: make them equal.")
    hostfile, config = f"{job.name}.hostfile", f"{job.name}.deepspeed.json"
    lines = [f"{host} slots={world.per_node}" for host in hosts]
    values, computed = configuration_in(job.codes)
    texts = {hostfile: "\n".join(lines) + "\n"}
    # With one node DeepSpeed's launcher does not go through ssh, which the hostfile would make it do.
    where = f'--hostfile "$here/{hostfile}"' if world.nodes > 1 else f"--num_gpus {world.per_node}"
    launch = program(
        job,
        "DeepSpeed",
        HERE,
        f"exec {this_python()} -m deepspeed.launcher.runner {where} \\",
        '  --master_port "${MASTER_PORT:-29500}" \\',
        f'  "$here/{job.script_name}" "$@"',
    )
    notes = []
    if values or computed:
        texts[config] = json.dumps(values, indent=2) + "\n"
    else:
        notes.append("No cell writes DeepSpeed's configuration down, so there is no file of it.")
    if computed:
        notes.append(f"Cells compute {listed(computed)}, so {config} lacks it; the script has it.")
    if world.nodes > 1 and not job.settings["hosts"]:
        notes.append(f"Put the names of your nodes into {hostfile}.")
    texts = {job.path.name: launch, **texts}
    return Made(texts, job.command, tuple(notes))


TARGETS = (
    Target(
        "deepspeed",
        "the script, DeepSpeed's hostfile and configuration, and a line for its launcher",
        ".sh",
        make_deepspeed,
        (Setting("hosts", "", "the nodes, as gpu1,gpu2 (default: this machine)"),),
    ),
)
