"""What takes part: each tool with its version, the page that says how it is run, and what it cannot do.

Nothing here starts anything: :mod:`benchmarks.race.players` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata

US = "jupyter-dtrain"


@dataclass(frozen=True)
class Notebook:
    """The lines with which a tool that keeps ranks between cells is used in a notebook."""

    cell: str
    """A cell on all ranks; ``{code}`` is what they run."""
    prepare: str = ""
    """What can be done long before ranks are asked for."""
    start: str = ""
    """Starts ``{n}`` ranks. Empty where the kernel itself is the ranks."""
    stop: str = ""
    variables: str = ""
    """Gives each rank the variables of torchrun, where the tool does not; ``{port}`` is a free one."""
    kill: str = ""
    """Ends rank 1, which does not answer."""
    replace: str = ""
    """Brings a world back in which a rank is dead, as the tool's documentation says."""
    module: str = "ipykernel_launcher"
    """What the kernel is run from."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the kernel; ``{n}`` is the number of ranks."""
    interrupt_mode: str = "signal"


@dataclass(frozen=True)
class Tool:
    """Something that takes part, or a limit."""

    package: str
    """Its name on PyPI."""
    docs: str
    """The page that describes the way in which it is run here."""
    how: str
    """That way, in a line for the reader."""
    notebook: Notebook | None = None
    function: str = ""
    """For launchers of functions: a cell that runs the function ``cell`` on ``{n}`` ranks; ``{port}`` is a free one."""
    imports: str = ""
    """What such a cell needs first."""
    limit: bool = False
    """Whether it is no tool for notebooks, but what the machine can do at best."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """For sections in which it has no value: why. ``""`` is for all others."""

    @property
    def prepares(self) -> bool:
        """Whether a notebook does something before it asks for ranks."""
        return bool(self.imports or (self.notebook and self.notebook.prepare))

    def reason(self, section: str) -> str:
        """Why it has no value in a section."""
        return self.cannot.get(section) or self.cannot.get("") or "it was not measured"


STATELESS = "it launches a function in new processes, which end with it: nothing is kept for a next cell"
NO_NOTEBOOK = "it is not used from cells"
NO_OBJECTS = "it has no push and no pull"
NO_TRAINING = "its cells run the same code without watching it, so they would repeat torchrun's figure"

_FUNCTIONS = {
    "": STATELESS,
    "cell": f"{STATELESS}; a launch takes what the rows of the start say",
    "training": "its processes run as torchrun's do",
}

TOOLS = {
    US: Tool(
        "jupyter-dtrain",
        "https://github.com/jupyter-dtrain/jupyter-dtrain/blob/main/docs/start.md",
        "%distributed start, %%distributed cells",
        Notebook(
            cell="%%distributed\n{code}",
            prepare="%load_ext jupyter_dtrain",
            start="%distributed start -n {n}",
            stop="%distributed stop",
            kill="%distributed kill 1",
            replace="%distributed replace",
        ),
    ),
    "ipyparallel": Tool(
        "ipyparallel",
        "https://ipyparallel.readthedocs.io/en/latest/tutorial/magics.html",
        "a Cluster of local engines, %%px --block cells",
        Notebook(
            cell="%%px --block\n{code}",
            prepare="import ipyparallel",
            start=(
                "cluster = ipyparallel.Cluster(n={n}, log_level=40)\n"
                "client = cluster.start_and_connect_sync(activate=True)\nview = client[:]"
            ),
            stop="cluster.stop_cluster_sync()",
            variables=(
                "view.scatter('rank', range(len(client)), flatten=True, block=True)\n"
                'view.execute(\'import os; os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="{n}", '
                'MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")\', block=True)'
            ),
        ),
        cannot={"training": NO_TRAINING},
    ),
    "jupyter-distributed": Tool(
        "jupyter-distributed",
        "https://github.com/pbontrager/jupyter-distributed#using-it",
        "a kernel of N processes, started as its server extension starts it, and plain cells",
        Notebook(
            cell="{code}",
            module="jupyter_distributed.kernel",
            env={"JUPYTER_DISTRIBUTED_BASE_KERNEL": "python3", "JUPYTER_DISTRIBUTED_WORLD_SIZE": "{n}"},
            interrupt_mode="message",
        ),
        cannot={"objects": NO_OBJECTS, "training": NO_TRAINING},
    ),
    "nbdistributed": Tool(
        "nbdistributed",
        "https://github.com/muellerzr/nbdistributed#quick-start",
        "%dist_init, %%distributed cells",
        Notebook(
            cell="%%distributed\n{code}",
            prepare="%load_ext nbdistributed",
            start="%dist_init -n {n}",
            stop="%dist_shutdown",
        ),
        cannot={"objects": NO_OBJECTS, "training": "a cell that takes more than 30 s fails"},
    ),
    "notebook_launcher": Tool(
        "accelerate",
        "https://huggingface.co/docs/accelerate/basic_tutorials/notebook",
        "notebook_launcher(function, num_processes=N)",
        imports="from accelerate import notebook_launcher",
        function="notebook_launcher(cell, num_processes={n}, use_port='{port}')",
        cannot=_FUNCTIONS,
    ),
    "torchrunx": Tool(
        "torchrunx",
        "https://torchrun.xyz/usage/general.html",
        "Launcher(workers_per_host=N, backend='gloo').run(function)",
        imports="import torchrunx",
        function="torchrunx.Launcher(hostnames=['localhost'], workers_per_host={n}, backend='gloo').run(cell)",
        cannot=_FUNCTIONS,
    ),
    "Ray Train": Tool(
        "ray",
        "https://docs.ray.io/en/latest/train/getting-started-pytorch.html",
        "TorchTrainer(function, scaling_config=ScalingConfig(num_workers=N)).fit()",
        imports=(
            "import ray\nfrom ray.train import ScalingConfig\nfrom ray.train.torch import TorchTrainer\n"
            "ray.init(num_cpus={n} + 1, include_dashboard=False)"
        ),
        function="TorchTrainer(cell, scaling_config=ScalingConfig(num_workers={n})).fit()",
        cannot=_FUNCTIONS,
    ),
    "TraceML": Tool(
        "traceml-ai",
        "https://traceopt-ai.github.io/traceml/user_guide/quickstart/",
        "traceml run, with init() and trace_step() in the script",
        cannot={"": f"it watches a script that torchrun runs: {NO_NOTEBOOK}"},
    ),
    "torchrun": Tool(
        "torch",
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "torchrun --standalone --nproc-per-node N script.py",
        limit=True,
        cannot={"": f"it runs a script to its end: {NO_NOTEBOOK}"},
    ),
    "mpiexec": Tool(
        "mpi4py",
        "https://mpi4py.readthedocs.io/en/stable/overview.html",
        "mpiexec -n N python script.py with mpi4py over Open MPI; MPI.Bcast, MPI.Gather and shared memory",
        limit=True,
        cannot={"": f"it runs a script to its end: {NO_NOTEBOOK}", "training": "DDP runs under torchrun's variables"},
    ),
}
"""All that take part, in the order in which they are shown."""

LIMITS = {name for name, tool in TOOLS.items() if tool.limit}


def versions() -> dict[str, str]:
    """The version of each; empty where it is not installed."""
    found = {}
    for name, tool in TOOLS.items():
        try:
            found[name] = metadata.version(tool.package)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def not_installed() -> dict[str, str]:
    """The tools that cannot take part here, and why."""
    return {name: "it is not installed here" for name, version in versions().items() if not version}
