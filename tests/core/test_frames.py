"""The frames of other threads: read while these run, in a process that collects garbage all the time."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from pathlib import Path

import jupyter_dtrain
from jupyter_dtrain.core import frames
from jupyter_dtrain.core.frames import frame_of, frames_of_threads, variables_of

PATIENCE = 120
LOOKS = """
import faulthandler, gc, inspect, sys, threading, time
from jupyter_dtrain.core.frames import frame_of, frames_of_threads, variables_of

faulthandler.enable()
sys.setswitchinterval(1e-5)
main, ends = threading.main_thread().ident, threading.Event()


class Freed:
    def __init__(self):
        self.cycle = self

    def __del__(self):
        for _ in range(3):
            len(str(self.__dict__))


def look():
    while not ends.is_set():
        frame = frame_of(main)
        variables_of(frame)
        while frame is not None:
            assert frame.f_code.co_name
            frame = frame.f_back
        assert main in frames_of_threads()


def looked_at(first, second: int = 1, *more, key=3, **others):
    pass


def deep(depth):
    return deep(depth - 1) if depth else inspect.getfullargspec(looked_at)


gc.set_threshold(7, 3, 3)
gc.callbacks.append(lambda *args: len(str(args)))
threads = [threading.Thread(target=look) for _ in range(2)]
for thread in threads:
    thread.start()
until, depth = time.monotonic() + SECONDS, 0
while time.monotonic() < until and all(thread.is_alive() for thread in threads):
    Freed()
    depth = (depth + 7) % 60
    deep(depth)
whole = all(thread.is_alive() for thread in threads)
ends.set()
for thread in threads:
    thread.join()
sys.exit(0 if whole and gc.isenabled() else 1)
"""


def test_a_process_survives_looks_at_its_threads_while_it_collects_garbage():
    """Without our care, Python 3.11.7 crashed, or stopped for ever, within a second."""
    code = LOOKS.replace("SECONDS", "5")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert done.returncode == 0, done.stderr


def test_a_thread_has_its_callers_and_variables():
    comes, goes = threading.Event(), threading.Event()

    def inner():
        name = "inner"
        comes.set()
        goes.wait(PATIENCE)
        return name

    def outer():
        inner()

    thread = threading.Thread(target=outer)
    thread.start()
    comes.wait(PATIENCE)
    frame = frame_of(thread.ident)
    while frame.f_code.co_name != "inner":
        frame = frame.f_back
    found = variables_of(frame)["name"], frame.f_back.f_code.co_name
    others = frames_of_threads()
    goes.set()
    thread.join()

    assert found == ("inner", "outer")
    assert thread.ident in others
    assert threading.get_ident() not in others
    assert frame_of(thread.ident) is None
    assert frame_of(threading.get_ident()) is sys._getframe()


def test_a_look_leaves_the_collection_of_garbage_as_it_is(monkeypatch):
    def raises():
        raise OSError("no frames")

    enabled = gc.isenabled()
    try:
        for wanted in (True, False):
            (gc.enable if wanted else gc.disable)()
            frames_of_threads()
            assert gc.isenabled() is wanted
            monkeypatch.setattr(frames, "sys", type("Fails", (), {"_current_frames": raises}))
            try:
                frames_of_threads()
            except OSError:
                pass
            else:
                raise AssertionError("the error is the caller's")
            assert gc.isenabled() is wanted
            monkeypatch.undo()
    finally:
        (gc.enable if enabled else gc.disable)()


def test_nothing_else_asks_for_the_frames_of_threads():
    package = Path(jupyter_dtrain.__file__).parent
    asking = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\b_current_frames\b", path.read_text(encoding="utf-8"))
    }

    assert asking == {"core/frames.py"}
