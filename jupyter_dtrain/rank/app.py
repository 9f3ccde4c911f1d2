"""The ipyparallel engine that hosts a rank.

It differs from ipyparallel's own engine in its surroundings: it initialises MPI first, to know its rank; it sets the
environment that the field expects before any user code; and its output goes to the recorder. Its parent process, the
watch, replaces ipyparallel's nanny.

Under failure at start it prints the reason to its error stream, which the watch passes on, and exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import multiprocessing.process
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import zmq.utils.garbage  # noqa: F401 — pyzmq would import it for the first long message, too late after os.chroot
from traitlets.config import Config

from jupyter_dtrain.core.events import EVENTS_MESSAGE, Batch, MimeBundle, to_wire
from jupyter_dtrain.core.gpus import gpus_of_rank
from jupyter_dtrain.core.processors import thread_variables
from jupyter_dtrain.core.variables import Variable, given
from jupyter_dtrain.core.world import Placement, rank_environment
from jupyter_dtrain.plugins import patches
from jupyter_dtrain.plugins.left_out import import_ipyparallel, left_out
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.wire.reports import Reached, Ready, Report
from jupyter_dtrain.wire.requests import RankSpec

from . import healing
from .agent import Agent
from .bars import install_bars
from .capture import DISPLAYS, EventSession, RankStream
from .comms import RankComms
from .connectivity import check_reach
from .descriptors import DescriptorReader
from .healing import RankHealing, introduce
from .media import FIGURE, MediaLog
from .memory import keep_freed
from .metrics import MetricBuffer
from .plugins import Plugins
from .rank_context import RankHome, connect
from .recorder import Recorder
from .resources import GpuReader, Sampler
from .slots import Replacement
from .step_work import StepWork
from .weights import WeightLog

# A rank has no debugger, and importing one took a third of its own start. ipykernel looks for debugpy once, when its
# own modules are imported: ipykernel 6 as soon as ipyparallel's engine is. A cell that imports debugpy gets it.
import_ipyparallel()
with left_out("debugpy.server"):
    import ipykernel.debugger  # noqa: F401
    from ipyparallel.engine.app import IPEngine

CONNECTIONS = ("registration", "control", "mux", "task", "iopub")
"""ipyparallel's names for the controller's sockets that an engine connects to, each at a port of its own."""
LOOK = 0.005
"""Seconds between two looks whether all ranks have imported MPI."""
NAP = 0.01
"""Seconds that a look of Open MPI's may be late while it waits for all ranks to start."""
MAX_SOCKET_FOLDER = 85
"""Bytes of a folder's path: a unix socket's may have 107, and multiprocessing adds up to 20."""

ENGINE = Patch(
    "ipyparallel.engine.app",
    calls=("IPEngine._start()",),
    why="A task of a cell that raises SystemExit, and loop.stop(), end ipyparallel's engine, and with it the rank.",
    lost="a rank cannot start",
)
STATUS = Patch(
    "ipykernel.kernelbase",
    replaces=("Kernel._publish_status", "Kernel._publish_status_and_flush"),
    why="ipykernel says for each message that it is busy and idle, which was half of what a cell sent to clients, and "
    "waits until its answers have left.",
    lost="each cell of a rank sends two more messages, and takes longer",
)
SOCKETS = Patch(
    "multiprocessing.process",
    reads=("_config",),
    why="Each worker of a data loader makes a folder among the temporary files, which stays when the worker is killed.",
    lost="workers of data loaders may leave folders among the temporary files",
)

_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


def await_written(path: Path, seconds: float) -> None:
    """Wait until the JSON object in the file ``path`` is whole; at most so long, and its reader then raises.

    ipyparallel's controller writes its file in place, so that it exists, empty, for a moment.
    """
    deadline = time.monotonic() + seconds
    while not path.read_text().endswith("}") and time.monotonic() < deadline:
        time.sleep(0.01)


class RankEngine(IPEngine):  # type: ignore[misc]  # ipyparallel has no types
    """The ipyparallel engine of one rank: it makes the rank's parts and hands its messages to the agent."""

    def __init__(
        self,
        spec: RankSpec,
        place: Placement,
        plugins: Plugins,
        channel: socket.socket,
        report: Callable[[Report], None],
        healer: RankHealing,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._place = place
        self._plugins = plugins
        self._channel = channel
        self._report = report
        self._healer = healer
        self._agent: Agent | None = None

    def parse_command_line(self, argv: Any = None) -> None:  # noqa: ARG002 — there is none
        """Take the options as values.

        There is no command line, and traitlets would first make a parser for all options of all classes: a tenth of a
        rank's own start.
        """
        spec, folder = self._spec, Path(self._spec.folder)
        options = {
            "url_file": spec.engine_file,
            "use_mpi": True,
            "enable_nanny": False,
            "wait_for_url_file": spec.settings.longest_step,
            "timeout": spec.settings.longest_step,
            "init_mpi": "",
            "max_heartbeat_misses": 0,
            "log_level": logging.ERROR,
            "ipython_dir": str(folder / "ipython"),
        }
        # Under this name, as from a command line: before what a system-wide file says of IPEngine.
        self.cli_config = Config({type(self).__name__: options, "ProfileDir": {"location": str(folder / "profile")}})
        self.update_config(self.cli_config)

    def start(self) -> None:
        """Serve until a signal ends the rank. Whatever user code sends through the loop between cells ends nothing.

        A task that raises SystemExit, a handler of a signal, and ``loop.stop()`` all do so.
        """
        loop = self.loop.asyncio_loop
        serving = loop.create_task(self._start())
        while not serving.done():
            try:
                loop.run_until_complete(serving)
            except BaseException as error:
                if serving.done() or loop.is_closed() or self._agent is None or not self._agent.outlive(error):
                    raise

    def to_work_dir(self) -> None:
        """Stay in the watch's folder.

        ipyparallel would go to the one in which it was imported; on another host that is the home, as the watch learns
        its folder later.
        """
        sys.path.insert(0, "")

    def load_connection_file(self) -> None:
        """Raise as :func:`.check_reach` where this host does not reach the controller: ipyparallel would only wait.

        One rank of each host checks this.
        """
        await_written(Path(self.url_file), self._spec.settings.longest_step)
        super().load_connection_file()
        info = self.connection_info
        transport, _, address = info["interface"].partition("://")
        if self._place.local_rank == 0 and transport == "tcp":  # worlds on one machine use files (ipc)
            for socket_name in CONNECTIONS:
                check_reach("ipyparallel's controller", (address, info[socket_name]))

    def redirect_output(self, iopub_socket: Any) -> None:
        """Take over from ipyparallel, which calls this when the kernel exists and before its loop starts."""
        spec, kernel = self._spec, self.kernel
        session = kernel.session
        # Nobody hears ipykernel's "busy" and "idle", and two messages a rank were half of what a cell sent to clients.
        STATUS.when_imported(lambda _: _silence(kernel))

        def announce(batch: Batch) -> None:
            session.send(iopub_socket, EVENTS_MESSAGE, to_wire(batch), ident=f"engine.{self.id}.dtrain".encode())

        recorder = Recorder(
            self._place.rank,
            spec.spool,
            announce,
            cap=spec.settings.log_cap,
            log=Path(spec.folder) / "logs" / f"rank-{self._place.rank}.log",
            mirror=spec.mirror,
        )
        self._healer.renumbered = recorder.renumber
        self._plugins.log = recorder.log
        descriptors = DescriptorReader(self._channel, recorder, self._plugins.is_log)
        descriptors.start()
        sys.stdout = RankStream(recorder, "stdout", 1, descriptors.drain_ended)
        sys.stderr = RankStream(recorder, "stderr", 2, descriptors.drain_ended)
        shell = kernel.shell
        keys = {"key": session.key, "signature_scheme": session.signature_scheme}

        metrics = MetricBuffer(recorder.send, lambda words: recorder.write("stderr", words), recorder.shield)
        media = MediaLog(
            recorder.append, metrics.complain, lambda value: self._plugins.parts("value", value, {}), recorder.shield
        )

        def shown(data: MimeBundle) -> None:
            # The loop may log at steps of its own, or none may be counted.
            media.show(data, lambda: max(metrics.user_step(FIGURE), metrics.step or 0))

        def record_displays(_: Any) -> None:
            events = EventSession(recorder, descriptors.drain_ended, shown, **keys)
            for hook in (shell.display_pub, shell.displayhook):
                DISPLAYS.put(hook, "session", events)

        DISPLAYS.when_imported(record_displays)
        self._plugins.prepare(self._place, spec, metrics)
        self._plugins.inherit(self._healer.heritage)
        install_bars()
        step_work = StepWork(
            shell.user_ns,
            self._plugins,
            metrics,
            recorder.append,
            lambda words: recorder.write("stderr", f"[jupyter-dtrain] {words}\n"),
        )
        step_work.weights = WeightLog(self._plugins.parts, media, step_work.say)
        connect(RankHome(self._place, metrics, recorder.append, self._plugins, step_work, media))
        sampler = Sampler(
            recorder.send,
            lambda: metrics.step,
            lambda: self._plugins.reserved() or None,
            GpuReader.of_rank(self._place.local_rank, each=spec.gpus_per_rank),
            self._plugins.services(),
        )
        comms = RankComms(recorder.append, metrics.complain)
        comms.install()
        agent = Agent(
            kernel,
            self._place,
            recorder,
            descriptors,
            self._plugins,
            metrics,
            sampler,
            comms,
            step_work,
            Path.cwd(),
            self._report,
            spec.generation,
            self._healer,
            media,
        )
        agent.install()
        self._agent = agent
        # The engine's own messages ("received signal 15") are not the cell's output.
        self.log.setLevel(logging.CRITICAL + 1)
        sys.path[:] = ["", *(p for p in spec.path if p not in sys.path and p), *(p for p in sys.path if p)]
        gc.freeze()
        gc.enable()
        self._report(
            Ready(
                self._place.rank,
                self._place.size,
                os.getpid(),
                socket.gethostname(),
                self.ident,
                self._place.local_rank,
                self._place.node,
            )
        )


def _silence(kernel: Any) -> None:
    for name in ("_publish_status", "_publish_status_and_flush"):
        if hasattr(kernel, name):  # the second one in newer versions
            STATUS.replace(kernel, name, _say_nothing)


def _say_nothing(_original: Any, *_args: Any, **_kwargs: Any) -> None:
    pass


@contextlib.contextmanager
def _temporary_folder(folder: str) -> Iterator[None]:
    """Have C libraries use ``folder`` for temporary files; Python and its children keep the user's setting.

    On crowded machines a rank was seen to leave ``ompi.HOST.UID`` there: the folder that Open MPI (5.0.11) makes where
    it knows of none of prterun's, as in a program that no ``mpiexec`` has started.
    """
    libc = ctypes.CDLL(None)
    before = os.environ.get("TMPDIR")
    libc.setenv(b"TMPDIR", os.fsencode(folder), 1)
    try:
        yield
    finally:
        if before is None:
            libc.unsetenv(b"TMPDIR")
        else:
            libc.setenv(b"TMPDIR", os.fsencode(before), 1)


@contextlib.contextmanager
def long_naps() -> Iterator[None]:
    """Let short sleeps of this thread last longer, up to :data:`NAP`.

    ``MPI_Init`` waits for the last rank by looking every 0.1 ms (Open MPI 5.0.11). That takes 2.5 % of a processor, so
    80 ranks that wait took both processors of a machine from those that still started: a start grew with their square.
    """
    libc = ctypes.CDLL(None)
    before = libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(int(NAP * 1e9)), 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(max(before, 0)), 0, 0, 0)


def _keep_sockets_in(folder: Path) -> None:
    """Have multiprocessing put its files, which are sockets, into ``folder``; its children inherit this.

    Otherwise each worker of a data loader makes a folder of its own (``pymp-*``, among the temporary files). A worker
    that is killed does not remove it, and persistent workers are killed at the end of their rank.
    """
    if len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER:
        with contextlib.suppress(OSError, AttributeError):
            folder.mkdir(mode=0o700, exist_ok=True)
            own: Any = multiprocessing.process.current_process()
            own._config["tempdir"] = str(folder)  # noqa: SLF001 — as multiprocessing.util.get_temp_dir


def run_engine(
    spec: RankSpec, channel: socket.socket, report: Callable[[Report], None], replacement: Replacement | None = None
) -> None:
    """Be a rank until a signal ends it. ``channel`` brings the text written to descriptors 1 and 2.

    ``replacement``: says which dead rank this process replaces; None in a world's start.
    """
    # The watch reads this descriptor after the end: a crash in native code shows where it was.
    faulthandler.enable(file=2)
    sys.argv = ["cell"]  # the program's name in what argparse prints
    keep_freed()
    gc.disable()  # until the rank is ready, as in launch.local.program
    import mpi4py

    # A rank that ends by sys.exit would count as alive once it called MPI_Finalize (Open MPI 5, ULFM).
    mpi4py.rc.finalize = False
    # Reductions of Python objects would use a hidden duplicate of the communicator. No code can revoke that, and MPI
    # makes it with the interpreter lock held: a rank whose peer does not come would neither answer nor be freed.
    mpi4py.rc.fast_reduce = False
    with _temporary_folder(spec.scratch), long_naps():
        from mpi4py import MPI

    _keep_sockets_in(Path(spec.scratch) / "multiprocessing")
    plugins = Plugins.load(lambda words: sys.stderr.write(f"{words}\n"))
    patches.report_to(plugins.patch_failed)
    if replacement is None:
        comm: Any = MPI.COMM_WORLD
        report(Reached(comm.rank, "mpi", os.getpid()))
        # A rank that waits in MPI keeps a processor busy, which the ranks that still start need.
        arrived = comm.Ibarrier()
        while not arrived.Test():
            time.sleep(LOOK)
    else:
        comm = healing.enter(MPI, replacement)
        healing.WORLD.put(MPI, "COMM_WORLD", comm)
        report(Reached(comm.rank, "mpi", os.getpid()))
        # Cells come in that generation: in the first of them, this rank joins the others' groups.
        spec = msgspec.structs.replace(spec, generation=replacement.generation - 1)
    # The one exchange of a start: the ranks' hosts, their processors and their frameworks' introductions.
    own = introduce(plugins)
    introductions = comm.allgather(own)
    place = healing.place_of(introductions, comm.rank)
    if replacement is not None:
        comm.Barrier()  # as the living ranks do
        healing.adopt(os.environ, place)
    given.hide(spec.given)
    given.put(rank_environment(place, master_addr=spec.master_addr, master_port=spec.master_port, run_id=spec.world_id))
    if spec.gpus_per_rank:
        # Once, by the first local rank of this process: CUDA does not look at the variable again.
        own_gpus = ",".join(gpus_of_rank(place.local_rank, spec.gpus_per_rank))
        given.put({"CUDA_VISIBLE_DEVICES": Variable(own_gpus, "the rank's own GPUs, of --gpus-per-rank")})
    # mpiexec keeps some variables for itself.
    given.note({name: variable for name, variable in spec.launched.items() if name in os.environ})
    # Only now: the ranks of a host may share its processors, or each may be bound to some of them.
    given.offer(thread_variables(own.processors, [one.processors for one in introductions if one.host == own.host]))
    plugins.meet([one.frameworks for one in introductions])
    plugins.environment(place, spec, given.offer)
    given.offer(
        {"MPLBACKEND": Variable("module://matplotlib_inline.backend_inline", "figures are shown as in a notebook")}
    )
    # It must be the one application of this process: ``%matplotlib`` looks for the application's kernel.
    healer = RankHealing(MPI, comm, own, place, plugins, report)
    if replacement is not None:
        healer.heritage = healing.heritage_of(introductions, replacement.ranks)
    engine: RankEngine = RankEngine.instance(spec, place, plugins, channel, report, healer)
    engine.initialize([])
    engine.start()
