"""Each system call that the guard for servers stops or needs, in a process of its own: a filter stays until its end.

A process plays another user's server by another answer of ``os.geteuid``. Connections of a real other user are tested
in tests/steward/test_other_users.py.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from jupyter_dtrain.rank.tcp_guard import accept_filter

pytestmark = pytest.mark.skipif(platform.machine() not in accept_filter._MACHINES, reason="unknown processor")

BEGIN = """
import ctypes, errno, os, platform, select, signal, socket, struct, sys, threading, time
from jupyter_dtrain.rank.tcp_guard import accept_filter, is_own, keep_for_this_user, keeps_others_out

machine = accept_filter._MACHINES[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
me, NOBODY = os.geteuid(), 12345

def be(user):
    os.geteuid = lambda: user

def call(name, fd, *rest):
    "The system call as code in C makes it: the descriptor, or the name of the error."
    value = libc.syscall(getattr(machine, name), fd, *rest)
    return value if value >= 0 else errno.errorcode[ctypes.get_errno()]

def connect(listener):
    client = socket.create_connection(listener.getsockname()[:2])
    select.select([listener], [], [], 5)  # as servers do
    return client

def deny(number, first=None):
    "A sandbox: the system call of that number (with that first argument) fails with EPERM."
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1 if first is None else 3, number)]
    if first is not None:
        steps += [(0x20, 0, 0, 16), (0x15, 0, 1, first)]
    steps += [(0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HL", len(steps), ctypes.addressof(code)))
    assert not libc.prctl(38, 1, 0, 0, 0)
    assert not libc.prctl(22, 2, program)

listener = socket.create_server(("127.0.0.1", 0))
"""

GUARDED = """
if not keep_for_this_user():
    sys.exit("no notification")
"""


def run(code: str, *, guarded: bool = True) -> str:
    """What ``code`` prints, in a process whose calls of ``accept`` the guard answers."""
    program = BEGIN + (GUARDED if guarded else "") + code
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    if ended.stderr.startswith("no notification"):
        pytest.skip("this system has no notification of accept")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


CALLS = pytest.mark.parametrize("name", ["accept", "accept4"])
"""Both system calls that the filter stops: servers in C++ make the one, Python and gRPC the other."""

OTHERS = """
be(NOBODY)
stranger = connect(listener)
stranger.settimeout(5)
refused = call(NAME, listener.fileno(), None, None, 0)
be(me)
with connect(listener):
    taken = call(NAME, listener.fileno(), None, None, 0)
print(refused, stranger.recv(1), isinstance(taken, int))
"""


@CALLS
def test_another_users_connection_is_closed(name) -> None:
    """The server hears that nobody waits, the other user that the connection has ended; this user's is taken."""
    assert run(f"NAME = {name!r}" + OTHERS) == "EAGAIN b'' True"


FLAGS = """
for flags in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC):
    with connect(listener):
        fd = call(NAME, listener.fileno(), None, None, flags)
    print(int(os.get_blocking(fd)), int(os.get_inheritable(fd)), end=" ")
"""


@pytest.mark.parametrize(("name", "found"), [("accept", "1 1 1 1 1 1 1 1"), ("accept4", "1 1 0 1 1 0 0 0")])
def test_flags_are_those_of_the_call(name, found) -> None:
    """``accept`` has no flags: what a register happens to hold means nothing."""
    assert run(f"NAME = {name!r}" + FLAGS) == found


ADDRESS = """
for room in (16, 4, 0):
    given, length = ctypes.create_string_buffer(b"?" * 16, 16), ctypes.c_uint32(room)
    with connect(listener) as client:
        os.close(call(NAME, listener.fileno(), given, ctypes.byref(length), 0))
        host, port = client.getsockname()
        whole = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
    print(given.raw[:8] == whole[:room] + b"?" * (8 - min(room, 8)), length.value, end=" ")
"""


@CALLS
def test_the_caller_gets_the_address(name) -> None:
    """As much as it has room for, with the length of the whole."""
    assert run(f"NAME = {name!r}" + ADDRESS) == "True 16 True 16 True 16"


ERRORS = """
with socket.socket() as idle, open(os.devnull) as file:
    for fd in (10_000, file.fileno(), idle.fileno(), listener.fileno()):
        print(call(NAME, fd, None, None, 0), end=" ")
print(len(os.listdir("/proc/self/fd")) - before)
"""


@CALLS
def test_errors_are_those_of_the_system(name) -> None:
    """No descriptor, no socket, no listener, nobody there; and no descriptor of the guard's is left open."""
    code = f"NAME = {name!r}\nbefore = len(os.listdir('/proc/self/fd'))" + ERRORS
    assert run(code) == "EBADF ENOTSOCK EINVAL EAGAIN 0"


UNIX = """
import tempfile
be(NOBODY)
here, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
with tempfile.TemporaryDirectory() as folder, here, client:
    here.bind(f"{folder}/socket")
    here.listen()
    client.connect(f"{folder}/socket")
    print(isinstance(call(NAME, here.fileno(), None, None, 0), int))
"""


@CALLS
def test_a_unix_socket_passes(name) -> None:
    """Its file's permissions say who may connect."""
    assert run(f"NAME = {name!r}" + UNIX) == "True"


PEERS = """
if not keep_for_this_user(["127.0.0.1"]):
    sys.exit("no notification")
be(NOBODY)
with connect(listener):
    print(isinstance(call(NAME, listener.fileno(), None, None, 0), int))
"""


@CALLS
def test_a_host_of_the_world_passes(name) -> None:
    """Where Linux cannot say whose process it is, the address decides."""
    assert run(f"NAME = {name!r}" + PEERS, guarded=False) == "True"


FAULT = """
def fails(*_):
    raise RuntimeError("no verdict")

judge, accept_filter.is_own = accept_filter.is_own, fails
with connect(listener):
    failed = call(NAME, listener.fileno(), None, None, 0)
accept_filter.is_own = judge
with connect(listener):
    print(failed, isinstance(call(NAME, listener.fileno(), None, None, 0), int))
"""


@CALLS
def test_a_fault_of_ours_ends_one_connection(name) -> None:
    """The thread that accepts waits for an answer, and the next connection for the thread that answers."""
    assert run(f"NAME = {name!r}" + FAULT) == "ECONNABORTED True"


INTERRUPTED = """
signal.signal(signal.SIGUSR1, lambda *_: None)
judge, main, slept = accept_filter.is_own, threading.get_ident(), threading.Event()

def slow(*args):
    accept_filter.is_own = judge
    signal.pthread_kill(main, signal.SIGUSR1)
    time.sleep(0.3)  # the call of accept has returned, or begun anew
    slept.set()
    return judge(*args)

accept_filter.is_own = slow
before = len(os.listdir("/proc/self/fd"))
with connect(listener) as first:
    first.settimeout(5)
    cut_off = call(NAME, listener.fileno(), None, None, 0)
    slept.wait(5)
    ended = first.recv(1)
with connect(listener):
    taken = call(NAME, listener.fileno(), None, None, 0)
os.close(taken)
print(cut_off, ended, len(os.listdir("/proc/self/fd")) - before)
"""


@CALLS
def test_a_signal_may_interrupt_the_call(name) -> None:
    """Nobody takes the answer then: its connection is closed, and the server goes on."""
    assert run(f"NAME = {name!r}" + INTERRUPTED) in ("EINTR b'' 0", "EAGAIN b'' 0")


THREAD = """
def serve():
    connection, address = listener.accept()
    with connect(listener):
        pass
    try:
        listener.accept()
        gone = "accepted"
    except BlockingIOError:
        gone = "gone"
    print(address == client.getsockname(), connection.getblocking(), connection.get_inheritable(), gone)

client = connect(listener)
thread = threading.Thread(target=serve)
thread.start()
thread.join()
"""


def test_a_later_thread_is_guarded_as_well() -> None:
    """Python's own accept() gets what the system call would give it; a client that has gone again is nobody's."""
    assert run(THREAD) == "True True False gone"


DENIED = """
number = {"seccomp": machine.seccomp, "prctl": {"x86_64": 157, "aarch64": 167}[platform.machine()]}[NAME]
before = keeps_others_out()
deny(number)
after = keeps_others_out(), keep_for_this_user()
be(NOBODY)
with connect(listener):
    print(before, *after, isinstance(call("accept4", listener.fileno(), None, None, 0), int))
"""


@pytest.mark.parametrize("name", ["seccomp", "prctl"])
def test_a_system_that_denies_it_is_known_before(name) -> None:
    """As for the store's process, a child of one in a sandbox. Its server then accepts every user, as before."""
    found = run(f"NAME = {name!r}" + DENIED, guarded=False)
    if found.startswith("False"):
        pytest.skip("this system has no notification of accept")

    assert found == "True False False True"


NETLINK = """
deny({"x86_64": 41, "aarch64": 198}[platform.machine()], socket.AF_NETLINK)
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 4)
except PermissionError:
    print("denied", end=" ")
with connect(listener):
    own = call(NAME, listener.fileno(), None, None, 0)
be(NOBODY)
with connect(listener):
    print(isinstance(own, int), call(NAME, listener.fileno(), None, None, 0))
"""


@CALLS
def test_without_netlink_the_guard_reads_the_tables(name) -> None:
    """Some sandboxes deny sockets of that kind; ``/proc/net/tcp`` says the same, more slowly."""

    assert run(f"NAME = {name!r}" + NETLINK) == "denied True EAGAIN"
