"""Text of native code and child processes comes whole, once and in order, also when the rank dies or is stuck."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading

import psutil
import pytest

from jupyter_dtrain.core.events import Output
from jupyter_dtrain.rank import descriptors
from jupyter_dtrain.rank.descriptors import DescriptorHolder, DescriptorReader, make_channel
from jupyter_dtrain.wire.spool import descriptor_counts, last_outputs, read_file


class Line:
    """Pipes, a holder that is served as a watch serves it, and the channel's other end."""

    def __init__(self) -> None:
        ends = {stream: os.pipe() for stream in descriptors.STREAMS}
        self.read = {stream: pair[0] for stream, pair in ends.items()}
        self.write = {stream: pair[1] for stream, pair in ends.items()}
        for fd in self.read.values():
            os.set_blocking(fd, False)
        ours, self.theirs = make_channel()
        self.holder = DescriptorHolder(self.read, ours, psutil.Process())
        self._ending = os.pipe()
        self._thread = threading.Thread(target=self._serve)

    def start(self) -> Line:
        self._thread.start()
        return self

    def stop(self) -> None:
        """The holder hears nothing more."""
        if self._thread.is_alive():
            os.write(self._ending[1], b"x")
            self._thread.join(10)
            os.read(self._ending[0], 1)

    def _serve(self) -> None:
        holder = self.holder
        while True:
            room = holder.make_room()
            readers = [self.read[stream] for stream in holder.pipes] if holder.reads else []
            writers = [holder.channel] if holder.sends else []
            ready, _, _ = select.select([*readers, holder.channel, self._ending[0]], writers, [], room)
            if self._ending[0] in ready:
                return
            if holder.channel in ready:
                holder.hear()
            for stream in tuple(holder.pipes):
                if self.read[stream] in ready:
                    holder.read(stream)
            holder.send()

    def close(self) -> None:
        self.stop()
        self.holder.channel.close()
        self.theirs.close()
        for fd in (*self.read.values(), *self.write.values(), *self._ending):
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.fixture
def line():
    line = Line()
    yield line
    line.close()


@pytest.fixture
def recorder(make_recorder):
    recorder = make_recorder()
    recorder.begin(1)
    yield recorder
    recorder.finish("ok")


@pytest.fixture
def reader(line, recorder):
    """The rank's end, and the thread that the holder is served by."""
    reader = DescriptorReader(line.theirs, recorder)
    reader.start()
    line.start()
    yield reader
    line.close()
    reader._thread.join(10)


@pytest.fixture
def texts(path_of):
    """The spooled text, by stream."""

    def texts() -> dict[str, str]:
        found = {"stdout": "", "stderr": ""}
        for event in read_file(path_of(1)):
            if isinstance(event.body, Output):
                found[event.body.stream] += event.body.text
        return found

    return texts


def test_descriptors_are_read_while_the_run_goes_on(line, reader, heard):
    """A thread does it, and each piece keeps its stream's name."""
    os.write(line.write["stderr"], b"native\n")
    heard.until(lambda heard: any(isinstance(body, Output) for body in heard.bodies))

    assert [("stderr", "native\n")] == [(b.stream, b.text) for b in heard.bodies if isinstance(b, Output)]


def test_drain_hands_over_what_was_written_so_far(line, reader, texts):
    """The end of a cell waits for it. A child's text, in pieces of characters."""
    subprocess.run([sys.executable, "-c", "print('x' * 500_000)"], stdout=line.write["stdout"], check=True)
    os.write(line.write["stdout"], "ü".encode()[:1])
    reader.drain()
    assert "x" * 500_000 + "\n" == texts()["stdout"]

    os.write(line.write["stdout"], "ü".encode()[1:])
    reader.drain()
    assert "x" * 500_000 + "\nü" == texts()["stdout"]


def test_spooled_text_leaves_memory(line, reader, texts):
    """Five megabytes pass, and the watch holds none of them."""
    piece = b"0123456789abcde\n" * 65536
    for _ in range(5):
        os.write(line.write["stdout"], piece)
    reader.drain()
    line.stop()
    line.holder.hear()

    assert 5 * len(piece) == len(texts()["stdout"])
    assert [] == line.holder.rest({})


def test_words_that_a_dead_rank_had_taken_and_not_spooled_are_left(line):
    """It has read them, and no reader would ever get them."""
    line.start()
    os.write(line.write["stderr"], b"first words\n")
    assert b"2first words\n" == line.theirs.recv(1 << 16)
    os.write(line.write["stdout"], b"last words\n")
    assert b"1last words\n" == line.theirs.recv(1 << 16)
    line.stop()

    assert [("stderr", "first words\n"), ("stdout", "last words\n")] == line.holder.rest({})


def test_words_that_a_dead_rank_had_spooled_are_not_shown_twice(line, recorder, path_of):
    """It died before it could say that they are spooled; its events say so."""
    line.start()
    os.write(line.write["stderr"], b"first words\n")
    recorder.write("stderr", "first words\n", len(line.theirs.recv(1 << 16)) - 1)
    recorder.flush()
    line.stop()
    os.write(line.write["stderr"], b"last words\n")

    counts = descriptor_counts(last_outputs(path_of(1)))
    assert {"stderr": 12} == counts
    assert [("stderr", "last words\n")] == line.holder.rest(counts)


def test_a_rank_that_cannot_read_does_not_stop_what_writes(line, recorder, texts, monkeypatch):
    """Native code that holds the interpreter lock and prints: the oldest is left out where it is too much."""
    monkeypatch.setattr(descriptors, "HELD_BYTES", 1 << 20)
    monkeypatch.setattr(descriptors, "PATIENCE", 0.05)
    line.start()
    piece = b"0123456789abcde\n" * 4096
    for _ in range(100):
        os.write(line.write["stdout"], piece)
    os.write(line.write["stdout"], b"the end\n")

    reader = DescriptorReader(line.theirs, recorder)
    reader.start()
    reader.drain()
    found = texts()
    assert found["stdout"].endswith("e\nthe end\n")
    lost = [int(text.split()[1]) for text in found["stderr"].splitlines() if "are missing here" in text]
    assert lost
    assert 100 * len(piece) + 8 == len(found["stdout"]) + sum(lost)
    line.close()
    reader._thread.join(10)


def test_while_a_rank_is_stopped_its_children_wait(monkeypatch):
    """SIGSTOP: nothing is left out."""
    monkeypatch.setattr(descriptors, "HELD_BYTES", 1 << 16)
    monkeypatch.setattr(descriptors, "PATIENCE", 0.02)
    rank = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    line = Line()
    try:
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        line.holder._rank = psutil.Process(rank.pid)
        line.start()
        os.set_blocking(line.write["stdout"], False)
        written = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                written += os.write(line.write["stdout"], b"x" * 4096)
                select.select([], [line.write["stdout"]], [], 0.5)
        line.stop()

        assert written == sum(len(text) for _, text in line.holder.rest({}))
    finally:
        line.close()
        rank.kill()
        rank.wait()


def test_a_pipe_may_end_between_two_looks(line):
    """A rank dies while it waits for its text: the request finds the end of a pipe that was found to be readable."""
    line.theirs.send(b"d")
    for fd in line.write.values():
        os.close(fd)
    line.holder.hear()
    line.holder.read("stdout")
    still = line.holder.hears
    line.theirs.close()
    line.holder.hear()

    assert not line.holder.pipes
    assert (still, line.holder.hears) == (True, False)
