"""The capture catches all output of a cell, on every way that it takes."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import warnings

import pytest

from jupyter_dtrain.core.events import ClearOutput, Display, Output, Result
from jupyter_dtrain.rank.capture import EventSession, RankStream
from jupyter_dtrain.wire.spool import read_file


@pytest.fixture
def running(make_recorder, heard):
    """A recorder in the middle of a run."""
    recorder = make_recorder()
    recorder.begin(1)
    yield recorder
    recorder.finish("ok")


@pytest.fixture
def said(running, heard):
    """The output as (stream, text) pairs, once the run is over."""

    def all_of_it() -> list[tuple[str, str]]:
        running.finish("ok")
        return [(body.stream, body.text) for body in heard.bodies if isinstance(body, Output)]

    return all_of_it


@pytest.fixture
def pipe():
    """A pipe whose read end does not block: (read, write)."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    for fd in (read, write):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_print_is_recorded_under_the_streams_name(running, said):
    """Both streams, with the number of characters as the answer."""
    out, err = RankStream(running, "stdout", 1), RankStream(running, "stderr", 2)
    print("a", "b", file=out)
    print("c", file=err)

    assert 3 == out.write("dé\n")
    out.writelines(["e", "f"])
    assert [("stdout", "a b\n"), ("stderr", "c\n"), ("stdout", "dé\nef")] == said()


def test_a_stream_takes_text_only(running):
    """Every text stream is so."""
    with pytest.raises(TypeError, match="must be str, not bytes"):
        RankStream(running, "stdout", 1).write(b"bytes")


def test_a_stream_is_what_libraries_expect(running):
    """A text stream in UTF-8 that is no terminal, with a descriptor for children."""
    stream = RankStream(running, "stdout", 1)

    assert isinstance(stream, io.TextIOBase)
    assert ("utf-8", "stdout", 1) == (stream.encoding, stream.name, stream.fileno())
    assert (True, False, False) == (stream.writable(), stream.readable(), stream.isatty())
    stream.close()
    assert not stream.closed
    assert 1 == stream.write("x")


def test_bytes_are_decoded_across_writes(running, said):
    """A character may come in pieces; what is no UTF-8 is replaced."""
    stream = RankStream(running, "stdout", 1)
    for byte in "漢".encode():
        stream.buffer.write(bytes([byte]))
    stream.buffer.write(memoryview(b"\xff!"))
    stream.buffer.flush()

    assert "漢\ufffd!" == "".join(text for _, text in said())


def test_a_flush_makes_text_safe(running, path_of):
    """It is in the file."""
    stream = RankStream(running, "stdout", 1)
    print("safe", file=stream, flush=True)

    assert ["safe\n"] == [e.body.text for e in read_file(path_of(1)) if isinstance(e.body, Output)]


def test_in_a_forked_child_a_stream_writes_whole_lines_to_its_descriptor(running):
    """The recorder's thread does not live there, and other children write at the same time."""
    read, write = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # each write is a message
    stream = RankStream(running, "stdout", write.fileno())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: forks of a process with threads
        pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            print("child", "ü", 1, file=stream)
            stream.write(f"{'a' * 3000}\n{'b' * 3000}\n")
            stream.write("unfinished")
            stream.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    write.close()

    written = [piece.decode() for piece in iter(lambda: read.recv(1 << 16), b"")]
    read.close()
    assert written == ["child ü 1\n", f"{'a' * 3000}\n", f"{'b' * 3000}\n", "unfinished"]


def test_messages_of_the_display_hooks_become_events(running, heard):
    """display, update, result and clear; others are left out."""
    session = EventSession(running, key=b"")
    session.send(
        None, session.msg("display_data", {"data": {"a": 1}, "metadata": {}, "transient": {"display_id": "i"}})
    )
    session.send(
        None, "update_display_data", {"data": {"a": 2}, "metadata": {"m": 1}, "transient": {"display_id": "i"}}
    )
    session.send(None, "execute_result", {"data": {"text/plain": "3"}, "metadata": {}, "execution_count": 4})
    session.send(None, "clear_output", {"wait": True})
    session.send(None, "status", {"execution_state": "busy"})
    running.finish("ok")

    assert [
        Display({"a": 1}, {}, "i"),
        Display({"a": 2}, {"m": 1}, "i", update=True),
        Result({"text/plain": "3"}, {}, 4),
        ClearOutput(wait=True),
    ] == heard.bodies[1:-1]
