"""What a dead rank has said last, as far as a report carries it."""

from __future__ import annotations

import subprocess
import sys

from jupyter_dtrain.watch.rank_process import CRASHED, LAST_WORDS, _shortened

PATIENCE = 60
CRASHES = """
import ctypes, faulthandler, threading

faulthandler.enable()
comes, stays = threading.Barrier(41), threading.Event()

def waits(depth):
    if depth:
        waits(depth - 1)
    else:
        comes.wait()
        stays.wait()

def crashes():
    ctypes.string_at(0)

for _ in range(40):
    threading.Thread(target=waits, args=(20,), daemon=True).start()
comes.wait()
crashing = threading.Thread(target=crashes)
crashing.start()
crashing.join()
"""


def test_of_a_crash_with_many_threads_the_stack_of_the_crashed_one_is_kept():
    """Python writes it first, and then those of all others, the main thread's last."""
    done = subprocess.run(
        [sys.executable, "-c", CRASHES], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert len(done.stderr) > 2 * LAST_WORDS

    pieces = [("stderr", done.stderr[at : at + 1000]) for at in range(0, len(done.stderr), 1000)]
    kept = _shortened([("stdout", "begins\n"), *pieces])
    text = "".join(text for _, text in kept)

    assert text.startswith("Fatal Python error: Segmentation fault")
    assert "in crashes" in text
    assert text.endswith(done.stderr[-LAST_WORDS:])
    lost = int(text.partition("[jupyter-dtrain] ")[2].split()[0])
    note = f"\n[jupyter-dtrain] {lost} characters before this are missing\n"
    assert lost + len(text) - len(note) == len("begins\n") + len(done.stderr)
    assert len(text) < LAST_WORDS + CRASHED + 2 * len(note)


def test_few_words_are_kept_as_they_are():
    words = [("stdout", "a\n"), ("stderr", "Fatal Python error: Aborted\n")]

    assert _shortened(words) == words
