"""The request for a world, and the data that each rank needs to start.

Both travel as JSON over a pipe, never on a command line: they may hold secrets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from jupyter_dtrain.core.errors import BadRequest, OtherVersion
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.core.snapshots import split_every
from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.core.variables import HIDDEN, Variable
from jupyter_dtrain.core.world import MAX_RANKS, check_environment, check_name

from .messages import PROTOCOL

ADDRESS: Final = "127.0.0.1"
"""The address at which ranks reach their own machine."""

LOCAL: Final = "local"
"""The name of the launcher of this machine."""

MAIN: Final = {"main": True}
"""For the JSON Schema of an option that the dialog shows first."""

MAX_PORT: Final = 65535

Options = TypeVar("Options", bound=msgspec.Struct)


class Check(NamedTuple):
    """In the annotation of a start option: checks a value that has the option's type.

    :func:`jupyter_dtrain.launch.options.check` calls it, once for each value that a person gives. Whoever reads the
    option later relies on that, and checks nothing again.
    """

    function: Callable[[Any], Any]
    """Returns the value, perhaps in a plainer form. Raises :class:`BadRequest`, which names the option."""


def _check_variables(env: dict[str, str]) -> dict[str, str]:
    check_environment(env)
    port = env.get("MASTER_PORT", "0")
    if not port.isdecimal() or int(port) > MAX_PORT:
        # The message does not show the value: those of variables may be secrets.
        raise BadRequest(f"The variable MASTER_PORT must be a port number from 0 to {MAX_PORT}.", option="env")
    return env


def _check_every(wanted: str) -> str | None:
    """The distance and the variables with one space between them; None for an empty text."""
    if not wanted:
        return None
    every, names = split_every(wanted)
    return " ".join([every, *names])


class CellDefaults(msgspec.Struct, frozen=True):
    """What cells of a world do unless their lines say otherwise, as a profile has it; None: nothing is said."""

    timeout: Annotated[float, Meta(gt=0)] | None = None
    """Seconds after which a cell is interrupted."""
    metrics: bool | None = None
    """Whether metrics are recorded from the frameworks' calls."""
    grad_norm: bool | None = None
    """Whether the norm of the gradients is recorded, too."""
    step_time: bool | None = None
    """Whether ranks observe where the time of a step goes."""
    check: str | None = None
    """A model that is compared over all ranks while a cell trains."""
    check_every: Annotated[int, Meta(ge=1)] | None = None
    """The number of steps from one comparison to the next."""


class WorldOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a world that depend on no launcher and on no framework.

    This is the only list of these options. :mod:`jupyter_dtrain.launch.options` adds those that launchers and
    frameworks declare; the signature of ``Session.start``, ``-h``, the JSON Schema of the sidebar's dialog and the
    checks come from all of them.
    ``title`` is the label in the dialog, where ``main`` options come first and all others under "More options";
    ``metavar`` stands for the value in ``-h``. :class:`Check` has what a type cannot say. None means: the launcher
    chooses.
    """

    n: (
        Annotated[
            int,
            Meta(
                title="Ranks",
                description="number of ranks (default: one per visible GPU, else 2; on other hosts all slots)",
                ge=1,
                le=MAX_RANKS,
                extra_json_schema=MAIN,
            ),
        ]
        | None
    ) = None
    gpus_per_rank: (
        Annotated[
            int,
            Meta(
                title="GPUs per rank",
                description="number of GPUs that each rank has for itself (default: each sees all of its host, and "
                "a framework that would take all uses one, unless the rank is alone on its host)",
                ge=1,
                le=MAX_RANKS,
            ),
        ]
        | None
    ) = None
    name: Annotated[
        str | None,
        Meta(
            title="Name",
            description="name of the world (default: world, then world-2, and so on)",
            extra_json_schema=MAIN,
        ),
        Check(check_name),
    ] = None
    profile: Annotated[
        str | None,
        Meta(
            title="Profile",
            description="profile of dtrain.toml, beside the notebook or in Jupyter's configuration folder, whose "
            "options apply where no others are given (default: none)",
        ),
    ] = None
    env: Annotated[
        dict[str, str],
        Meta(title="Environment variables", description="environment variables for the ranks (default: none)"),
        Check(_check_variables),
    ] = {}
    mpiexec: Annotated[
        str | None,
        Meta(
            title="mpiexec",
            description="path of the mpiexec to use (default: this environment's own)",
            extra_json_schema={"metavar": "PATH"},
        ),
    ] = None
    tensorboard: Annotated[
        str | None,
        Meta(
            title="TensorBoard folder",
            description="folder for TensorBoard's event files, which get the metrics as well (default: none)",
            extra_json_schema={"metavar": "DIR"},
        ),
    ] = None
    track: Annotated[
        str | None,
        Meta(
            title="Trackers",
            description="trackers that get the runs as well, such as wandb:PROJECT mlflow:http://host:5000 "
            "trackio:PROJECT; with ?ranks behind one, also the points of each rank, and with ?offline behind W&B's "
            "project a folder for wandb sync (default: what the variable "
            "JUPYTER_DTRAIN_TRACK says, else none)",
            extra_json_schema={"metavar": "TRACKER[:TARGET] …", "words": True},
        ),
    ] = None

    snapshot_every: Annotated[
        str | None,
        Meta(
            title="Snapshots",
            description="save variables between steps of cells, such as 10m model opt (default: none)",
            extra_json_schema={"metavar": "TIME NAME …", "words": True},
        ),
        Check(_check_every),
    ] = None
    auto_replace: Annotated[
        bool,
        Meta(
            title="Replace dead ranks",
            description="replace ranks that die, as %distributed replace does, once no cell runs (default: no)",
            extra_json_schema={"formerly": "auto_heal"},
        ),
    ] = False

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show all fields but the values of ``env``, which may be secrets."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return list((fields | {"env": dict.fromkeys(self.env, HIDDEN)}).items())

    def __repr__(self) -> str:
        return f"WorldOptions({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class WorldRequest(msgspec.Struct, frozen=True):
    """All that the steward needs to start a world. It gets it on standard input."""

    id: str
    options: WorldOptions
    """The options as requested, with ``n``, ``name`` and ``mpiexec`` chosen where the person left them open."""
    frameworks: dict[str, dict[str, Any]]
    """The values of each framework's start options, by the framework's name."""
    folder: str
    """Run-time folder of the world, 0700: connection files, logs, sockets."""
    sockets: str
    """Folder, 0700, of the unix sockets of steward and controller."""
    scratch: str
    """Folder, 0700, in this machine's memory where it has a place for that: what MPI maps and shares among ranks."""
    spool: str
    """Folder, 0700, that keeps the ranks' events; it outlives the world."""
    cwd: str
    path: list[str]
    """The notebook's ``sys.path`` beyond what the interpreter sets by itself."""
    settings: Settings
    store: str
    """The file that keeps what is known of all runs."""
    roles: list[str] = []
    """The role of each rank, by rank; empty where all are alike. A framework's declaration gives them."""
    launcher: str = LOCAL
    """The name of the launcher."""
    launcher_options: dict[str, Any] = {}
    """The values of the launcher's own options; see :meth:`options_of_launcher`."""
    hosts: dict[str, int] = {}
    """The ranks of each host, in order; empty where all are on this machine."""
    slots: dict[str, int] = {}
    """The most ranks of each host that the person named, in order; empty where that is not known."""
    address: str = ADDRESS
    """The address of this machine at which ranks reach it."""
    threads: int = 0
    """The processors that a scheduler gives each rank; 0: it gives no number."""
    cells: CellDefaults = CellDefaults()
    """What cells do unless their lines say otherwise."""
    profile_file: str = ""
    """The file of the profile, where the person named one."""

    @property
    def name(self) -> str:
        """The world's name."""
        assert self.options.name is not None
        return self.options.name

    @property
    def size(self) -> int:
        """The number of ranks."""
        assert self.options.n is not None
        return self.options.n

    def resized(self, size: int) -> WorldRequest:
        """The request for the same world with ``size`` ranks."""
        return msgspec.structs.replace(self, options=msgspec.structs.replace(self.options, n=size))

    def options_of_launcher(self, kind: type[Options]) -> Options:
        """The launcher's own options as the Struct that it declares."""
        return msgspec.convert(self.launcher_options, readable(kind))

    @property
    def passing_folders(self) -> list[str]:
        """The folders that end with the world. The run-time folder, by which others find the world, is the last."""
        return [folder for folder in (self.scratch, self.sockets) if folder != self.folder] + [self.folder]


class Desk(NamedTuple):
    """Where a framework's server listens, and the secret by which it knows ranks of this world."""

    host: str
    port: int
    secret: str


class RankSpec(msgspec.Struct, frozen=True):
    """All that a rank and its watch need to start."""

    world: str
    world_id: str
    engine_file: str
    """ipyparallel's connection file for engines; it may appear after the rank has started."""
    folder: str
    scratch: str
    """The world's folder for what ends with it: where MPI may make its files."""
    spool: str
    path: list[str]
    master_addr: str
    master_port: int
    options: dict[str, dict[str, Any]]
    """The values of each framework's start options, by the framework's name; see :meth:`options_of`."""
    servers: dict[str, str]
    """``host:port`` of the meeting place that the steward keeps for a framework, by the framework's name."""
    secret: str
    """Shows a framework's server that the request is from a rank of this world; see :class:`ServerSpec`."""
    settings: Settings
    roles: list[str] = []
    """The role of each rank, by rank; empty where all are alike."""
    gpus_per_rank: int = 0
    """How many GPUs of its host each rank sees, as the person wants it; 0: all."""
    generation: int = 0
    launched: dict[str, Variable] = {}
    """Variables that were set for all ranks, which have them already."""
    given: list[str] = []
    """Names of the variables that the user gave; their values may be secrets."""
    protocol: int = 0
    """The protocol of the steward that wrote this."""
    cwd: str = ""
    """The ranks' folder, if this host has it."""
    umask: int | None = None
    """The person's umask, with which ranks make files; None: that of the watch's parent."""
    mirror: str = ""
    """The steward's copy of ``spool``, where that is on another host."""
    remote: str = ""
    """The steward's address as this host reaches it, where its files are not the steward's; else empty."""

    def options_of(self, framework: str, kind: type[Options]) -> Options:
        """The start options of ``framework`` as the Struct that it declares; defaults where the world has none."""
        return msgspec.convert(self.options.get(framework, {}), readable(kind))

    def desk_of(self, framework: str) -> Desk | None:
        """Where the server of ``framework`` listens; None where the world has none."""
        host, _, port = self.servers.get(framework, "").rpartition(":")
        return Desk(host, int(port), self.secret) if port else None

    @property
    def address(self) -> tuple[str, int]:
        """Where the world's ranks meet: host and port."""
        return self.master_addr, self.master_port

    def to_line(self) -> bytes:
        """The line that carries this to a watch."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> RankSpec:
        """The specification that the steward wrote.

        Raises :class:`OtherVersion` where a steward of another version wrote it: an upgrade between a world's start and
        its restart.
        """
        try:
            spec = msgspec.json.decode(line, type=readable(cls))
        except UNREADABLE:
            spec = None
        if spec is None or spec.protocol != PROTOCOL:
            raise OtherVersion(
                "Another version of jupyter-dtrain has been installed since this world was started, and its ranks "
                "cannot be started again: end the world with %distributed stop, restart the kernel, start a new world."
            )
        return spec


class ServerSpec(msgspec.Struct, frozen=True):
    """The facts about the world that a framework's server needs; it reads them from its standard input."""

    secret: str
    """Every request of a rank carries it, so that the server ignores other processes of the host."""
