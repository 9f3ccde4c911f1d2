"""Text goes out in few messages of bounded size, at the pace that the server takes."""

from __future__ import annotations

from jupyter_dtrain.core.events import Display
from jupyter_dtrain.view.outbox import BACKLOG
from jupyter_dtrain.view.pace import ENVELOPE, Pace


def test_many_lines_cost_at_most_twice_their_bytes(scene):
    """2 ranks x 400 lines x 60 characters, with the envelopes of the messages."""
    s = scene(2)
    payload = 0
    for n in range(0, 400, 10):
        for rank in range(2):
            lines = "".join(f"{rank} {n + k} ".ljust(59, ".") + "\n" for k in range(10))
            payload += len(lines)
            s.say(rank, lines)
        s.wait(0.01)
    s.close()
    cost = sum(len(text) + ENVELOPE for _, text in s.painter.calls)
    assert len(s.painter.text().splitlines()) == 800
    assert cost <= 2 * payload
    print(f"{payload} bytes printed, {cost} sent in {len(s.painter.calls)} messages")


def test_text_after_a_quiet_time_goes_at_once_and_then_together(scene):
    """The first line does not wait to be gathered; the next ones do, up to 50 ms."""
    s = scene(1)
    s.say(0, "first\n")
    assert s.painter.calls == [("stdout", "first\n")]
    s.say(0, "second\n")
    s.now += 0.02
    s.say(0, "third\n")
    assert len(s.painter.calls) == 1
    s.wait(0.031)
    assert s.painter.calls[1:] == [("stdout", "second\nthird\n")]


def test_messages_are_of_bounded_size(scene):
    """No stream message is larger than 64 kB."""
    s = scene(1)
    s.say(0, "".join(f"line {n}\n" for n in range(30_000)))
    s.close()
    assert max(len(text) for _, text in s.painter.calls) <= 65_536
    assert s.painter.text() == "".join(f"line {n}\n" for n in range(30_000))


def test_text_beyond_the_pace_waits_and_is_not_dropped(scene):
    """Text is late rather than lost; the end waits for the pace, in small steps and not for long."""
    s = scene(1, pace=Pace(rate=100_000, burst=100_000))
    text = "".join(f"line {n}\n" for n in range(40_000))
    s.say(0, text)
    early = len(s.painter.text())
    assert early < 101_000
    s.wait(1.0)
    assert early < len(s.painter.text()) < 220_000
    s.close()
    assert s.painter.text() == text
    assert 1.0 < s.slept <= 3.05


def test_a_terminal_does_not_wait(scene, recorder):
    """There is no server that drops output."""
    s = scene(1, painter=recorder(paced=False), pace=Pace(rate=1, burst=1))
    s.say(0, "a\n" * 10_000)
    s.close()
    assert s.slept == 0.0


def test_a_flood_of_displays_ends_with_its_run(scene):
    """The newest displays are shown and the others counted; the next cell of the process is shown at once."""
    pace = Pace()
    s = scene(2, pace=pace)
    for start in range(0, 20_000, 100):
        for rank in range(2):
            s.say(rank, *(Display({"text/html": f"<b>{n}</b>"}) for n in range(start, start + 100)))
    s.close()
    shown = [data["text/html"] for data in s.painter.shown.values()]
    left_out = int(s.painter.text("stderr").split()[0].replace(",", ""))
    assert shown[-1] == "<b>19999</b>"
    assert len(shown) + left_out == 20_000
    assert len(shown) >= BACKLOG // 2
    captions = sum(call[1] == "[0-1]" for call in s.painter.calls)
    assert captions == len(shown)

    later = scene(2, pace=pace)
    later.now = s.now + s.slept
    later.say(0, "hello\n")
    later.close()
    assert later.painter.text() == "[0] hello\n"
    assert later.slept < 1
