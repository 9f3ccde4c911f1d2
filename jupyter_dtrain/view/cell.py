"""A running cell's output below the cell: text, rich outputs, the live line, and in the end results.

Equal lines of several ranks appear once, labelled with the ranks, within 30 ms. The first ``shown_bytes`` of text are
shown and never dropped, only delayed to the pace that the server can take. Beyond them one display shows how much
there is, where it is, and its last lines. A painter that fails makes the view quiet.

The error of a rank is shown while others go on, and so is what :meth:`CellView.stand` gets. Both are taken back when
the run ends, whose report has the errors; where nothing can be taken back, a failed rank has one line.
"""

from __future__ import annotations

import time
import uuid
from html import escape
from typing import TYPE_CHECKING, Final, Protocol

from jupyter_dtrain.core import causes as errors
from jupyter_dtrain.core import steering
from jupyter_dtrain.core.events import (
    Batch,
    Body,
    ClearOutput,
    CommMessage,
    Display,
    Dropped,
    Error,
    Output,
    Progress,
    PromptClosed,
    PromptOpened,
    Started,
    Steered,
)
from jupyter_dtrain.core.notices import anchors_in, pointer, pointer_html

from .labels import human, label
from .lines import HOLD, LineMerger, Merged
from .live_line import UNFINISHED, LiveLine
from .outbox import Outbox
from .overflow import Overflow, Tally
from .pace import DISPLAY, FRONT_END, RATE, Pace
from .prompts import prompt_words
from .rich import RICH, Known, RichOutputs, paint_results
from .splitter import LineSplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jupyter_dtrain.core.run import Run

    from .painter import Painter, StreamName

SHOWN_BYTES: Final = 2_000_000
"""Bytes of text, labels included, that a cell shows by default."""

SETTLING: Final = 0.5
"""Seconds for which the first error of a run waits for the other ranks: mostly all fail, and the run is over."""

SILENT: Final = 2.0
"""Seconds without output after which a terminal says how the run goes."""
LINE: Final = 1.0
"""Seconds between two updates of the line that says how the run goes."""

ASKED: Final = 0.1
"""Seconds after which a prompt that was opened or closed is shown: ranks ask together, and debuggers ask on."""

_NEWLINE: Final = "\n"
_OURS: Final = "[jupyter-dtrain] "
"""Begins what ranks say themselves."""
_PRE: Final = '<pre style="margin:0;padding:0;white-space:pre-wrap">'

_ERRORS: Final = "errors"
_PAUSED: Final = "paused"
_PROMPTS: Final = "prompts"
_STREAMS: Final[tuple[StreamName, ...]] = ("stdout", "stderr")


class Widgets(Protocol):
    """Takes the messages of the widgets that ranks make; see :class:`~jupyter_dtrain.view.comms.CellWidgets`."""

    def hear(self, rank: int, message: CommMessage) -> None:
        """Take a message of a rank's widget."""

    def idle(self, rank: int) -> None:
        """Note that the rank has ended the cell."""


class CellView:
    """Shows one run through ``painter``; a :class:`~jupyter_dtrain.view.protocol.RunView`.

    ``ranks`` run the cell, in a world of ``size`` ranks. ``paint_errors``: paint the run's errors when it ends, because
    no caller waits for the run and no exception will carry them. ``run``: show its errors while it goes on, too.
    ``line``: how the run goes, in a line that a run gets which prints nothing, until its end. ``widgets``: connects
    ranks' widgets to the browser; without it they appear as text. ``known``: the displays that earlier cells gave an
    id. ``clears``: the cell's source clears its output. ``sleep`` (seconds) is the function with which :meth:`close`
    waits.
    """

    def __init__(
        self,
        painter: Painter,
        ranks: Iterable[int],
        size: int,
        *,
        pace: Pace = FRONT_END,
        hold: float = HOLD,
        shown_bytes: int = SHOWN_BYTES,
        paint_errors: bool = False,
        run: Run | None = None,
        line: Callable[[], str] | None = None,
        widgets: Widgets | None = None,
        known: Known | None = None,
        clears: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        ranks = sorted(ranks)
        name = f"dtrain-{uuid.uuid4().hex[:12]}"
        self._size = size
        self._widgets = widgets
        self._limit = shown_bytes
        self._paint_errors = paint_errors
        self._run = run
        self._name = name
        self._erases = painter.erases
        self._line = line
        self._line_at: float | None = None
        """When the line that says how the run goes is shown next; None until the first tick."""
        self._lined = False
        """Whether that line is shown now."""
        self._standing: dict[str, str] = {}
        """The words that :meth:`stand` shows now, by topic; empty ones were taken back."""
        self._prompts: dict[int, PromptOpened] = {}
        """What ranks ask a person."""
        self._prompts_at: float | None = None
        """When that is to be shown as it is then."""
        self._asked: set[int] = set()
        """The ranks of which it was said, where nothing can be taken back, that they ask."""
        self._errors_at: float | None = None
        """When errors are to be shown that are not shown yet."""
        self._failed: set[int] = set()
        """The ranks whose errors are shown."""
        self._begun: set[int] = set()
        """The acts on the loop whose words are shown."""
        self._told: set[int] = set()
        """Those whose outcome is shown."""
        self._explained: set[str] = set()
        """The anchors of notices whose addresses are shown."""
        self._outbox = Outbox(painter, pace, sleep=sleep)
        self._merger = LineMerger(ranks, hold)
        self._live = LiveLine(self._outbox, size, name, live=painter.live)
        self._captions = painter.live
        self._rich = RichOutputs(
            self._outbox,
            self._merger,
            size,
            name,
            widgets=widgets is not None,
            captions=painter.live,
            known=known,
            page=painter.erases,
            paged=clears,
        )
        self._notice = Overflow(self._outbox, size, name, live=painter.live)
        self._splitters = {(rank, stream): LineSplitter() for rank in ranks for stream in _STREAMS}
        self._open: set[tuple[int, StreamName]] = set()  # the splitters that hold an unfinished line
        self._tallies = {rank: Tally() for rank in ranks}
        self._hosts: dict[int, str] = {}
        self._logs: dict[int, str] = {}
        self._shown = 0
        self._full = False  # the limit is reached: no more text is shown
        self._counted: set[int] = set()  # ranks whose text is only counted, because some of it was left out
        self._news = False  # the notice does not show everything yet
        self.shows_bars = True
        """Whether loops' bars and the words on prompts appear as text; a panel has them instead."""

    def feed(self, batch: Batch, now: float) -> None:
        """Take the next events of one rank and show what can be shown."""
        rank = batch.rank
        expected = batch.first
        for event in batch.events:
            # Only a batch with totals leaves out text. What the rank prints after such a gap must not be joined to what
            # came before: half a line and the other half of a later one would show as a line that nobody printed.
            if event.seq > expected and batch.totals is not None:
                self._only_count(rank, now)
            expected = event.seq + 1
            self._take(rank, event.body, now)
        if batch.totals is not None:
            if expected <= batch.last:
                self._only_count(rank, now)
            self._tallies[rank].adopt(batch.totals)
            self._news = True
        self._show(now)

    def _take(self, rank: int, body: Body, now: float) -> None:
        if isinstance(body, Output):
            self._output(rank, body, now)
        elif isinstance(body, (Display, ClearOutput)):
            self._rich.push(rank, body, now)
        elif isinstance(body, CommMessage):
            self._hear_widget(rank, body)
        elif isinstance(body, Progress):
            self._progress(rank, body, now)
        elif isinstance(body, Steered):
            self._show_act(body, now)
        elif isinstance(body, Started):
            self._hosts[rank], self._logs[rank] = body.host, body.spool
        elif isinstance(body, Error):
            self._errors_at = now + SETTLING if self._errors_at is None else self._errors_at
        elif isinstance(body, (PromptOpened, PromptClosed)):
            self._ask(rank, body if isinstance(body, PromptOpened) else None, now)
        elif isinstance(body, Dropped):
            words = f"{human(body.bytes)} of output were not kept: {body.reason}"
            self._merger.push(rank, "stderr", words, now)

    def _hear_widget(self, rank: int, message: CommMessage) -> None:
        if self._widgets is not None:
            self._widgets.hear(rank, message)

    def _show_act(self, steered: Steered, now: float) -> None:
        """Show what a person asks of the loop before what that prints, and what became of it after that."""
        if self._run is None:
            return
        fold = self._run.fold
        act, paused = next(iter(steering.recorded(fold, (steered.number,))), None), fold.paused
        if act is not None and steered.phase == "begun" and act.number not in self._begun:
            self._begun.add(act.number)
            self.note(
                f"Between steps {act.step} and {act.step + 1}, by {act.by}: {act.words.removeprefix('between ')}", now
            )
        elif act is not None and steered.phase == "done" and act.said and act.number not in self._told:
            self._told.add(act.number)
            self.note(act.said, now)
        words = "" if paused is None else f"Paused after step {paused}. %distributed resume lets the loop go on."
        if words or _PAUSED in self._standing:
            self.stand(_PAUSED, words, now)

    def idle(self, rank: int, now: float) -> None:
        """Note that ``rank`` is done: its unfinished lines are complete, and no line waits for it."""
        if self._widgets is not None:
            self._widgets.idle(rank)
        for stream in _STREAMS:
            self._end_line(rank, stream, now)
        self._merger.idle(rank)
        if rank in self._prompts:
            self._ask(rank, None, now)
        if _ERRORS in self._standing and self._errors_at is None:
            self._errors_at = now + SETTLING
        self._show(now)

    def note(self, words: str, now: float) -> None:
        """Show ``words`` after everything that was printed before, however much that is."""
        self._paint(self._merger.flush(), now)
        self._outbox.text("stderr", f"{words}\n")
        self._explain(words)
        self._outbox.send(now)

    def _explain(self, words: str) -> None:
        """Show where to read on about a notice, once in a cell."""
        new = [anchor for anchor in anchors_in(words) if anchor not in self._explained]
        self._explained.update(new)
        if new and self._erases:
            self._outbox.display({"text/plain": pointer(new), "text/html": pointer_html(new)}, {}, None)
        elif new:
            self._outbox.text("stderr", f"{pointer(new)}\n")

    def stand(self, topic: str, words: str, now: float, over: str = "") -> None:
        """Show ``words`` for as long as they are true, in place of the last ones about ``topic``."""
        before = self._standing.get(topic, "")
        if words == before:
            return
        self._paint(self._merger.flush(), now)
        if not self._erases:
            if words or over:
                self._outbox.text("stderr", f"{words or over}\n")
                self._explain(words)
        else:
            data = {"text/plain": words}
            if topic != _ERRORS and (found := anchors_in(words)):
                data["text/html"] = f"{_PRE}{escape(words)}</pre>{pointer_html(found)}"
            show = self._outbox.update if topic in self._standing else self._outbox.display
            show(data, {}, self._display_of(topic))
        self._standing[topic] = words
        self._outbox.send(now)

    def _show_line(self, now: float) -> float | None:
        """Redraw the line that says how the run goes, if no other line is redrawn; returns when that is due next."""
        if self._line is None or self._live.shows or self._rests:
            return None
        if self._line_at is None:
            self._line_at = now + SILENT
        if now >= self._line_at:
            self._lined, self._line_at = True, now + LINE
            self._outbox.update({"text/plain": self._line()}, {}, self._display_of("line"))
            self._outbox.send(now)
        return self._line_at

    def _hide_line(self, now: float) -> None:
        if self._lined:
            self._outbox.update({"text/plain": ""}, {}, self._display_of("line"))
        self._lined, self._line_at = False, now + SILENT

    def _display_of(self, topic: str) -> str:
        return f"{self._name}-{topic}"

    def _ask(self, rank: int, prompt: PromptOpened | None, now: float) -> None:
        """A rank asks a person, or asks no more."""
        if prompt is None:
            self._prompts.pop(rank, None)
        else:
            self._prompts[rank] = prompt
        self._prompts_at = now + ASKED
        if self._rests:
            self._hide_line(now)
            self._live.close(now)

    @property
    def _rests(self) -> bool:
        """Whether lines that are redrawn must rest: in a terminal they would overwrite what a person types."""
        return bool(self._prompts) and not self._erases

    def _show_prompts(self, now: float) -> None:
        """Say who is at a prompt, and who waits for that."""
        self._prompts_at = now + LINE if self._prompts and self._erases else None
        if not self.shows_bars:
            return
        fold = None if self._run is None else self._run.fold
        words = prompt_words(self._prompts, *((fold.samples, fold.unfinished) if fold is not None else ({}, ())))
        if self._erases:
            self.stand(_PROMPTS, words, now)
        elif self._prompts.keys() - self._asked:
            self._asked |= self._prompts.keys()
            self.note(words, now)

    def _show_errors(self, now: float) -> None:
        """Show the errors of ranks while others go on."""
        self._errors_at = None
        if self._run is None or not self._run.unfinished:
            return
        if self._erases:
            self.stand(_ERRORS, "\n".join(errors.so_far(self._run)), now)
            return
        failed = set(self._run.errors)
        new, self._failed = failed - self._failed, failed
        for words in errors.so_far_briefly(self._run, new):
            self.note(words, now)

    def tick(self, now: float) -> float | None:
        """Do what is due; returns the time of the next wanted call, or ``None``."""
        if self._errors_at is not None and now >= self._errors_at:
            self._show_errors(now)
        if self._prompts_at is not None and now >= self._prompts_at:
            self._show_prompts(now)
        due = (self._show(now), self._live.tick(now), self._rich.tick(now), self._show_line(now))
        wanted = [*due, self._merger.deadline(), self._errors_at, self._prompts_at]
        if not self._full and not self._rests:
            for key in self._open:
                since = self._splitters[key].since + UNFINISHED
                if since > now:
                    wanted.append(since)
        if self._news and self._leaves_out:
            wanted.append(self._notice.next)
        return min((time for time in wanted if time is not None), default=None)

    def close(self, run: Run, now: float) -> None:
        """Show everything that is held, then the results. May wait about 3 s for the server's pace."""
        for rank, stream in sorted(self._open):
            self._end_line(rank, stream, now)
        self._paint(self._merger.flush(), now)
        self._hide_line(now)
        self._live.close(now)
        self._rich.close()
        for topic in [topic for topic, words in self._standing.items() if words]:
            self.stand(topic, "", now)
        if self._leaves_out:
            for rank, totals in run.totals.items():
                if rank in self._counted:
                    self._tallies[rank].adopt(totals)
            self._logs.update((rank, path) for rank, path in run.logs.items() if rank not in self._logs)
            words = self._words(over=True)
            self._notice.show(f"{words}\n{pointer(anchors_in(words.partition(_NEWLINE)[0]))}", now)
            self._notice.close()
        paint_results(run.results, self._outbox, self._size, captions=self._captions)
        if self._paint_errors and (blocks := errors.blocks(run)):
            self._outbox.text("stderr", "\n".join(blocks) + "\n")
        if left_out := self._outbox.left_out:
            what = f"{left_out:,} displays are" if left_out > 1 else "1 display is"
            self._outbox.text(
                "stderr",
                f"{what} not shown: more came than the {RATE // DISPLAY} a second that the notebook's server passes "
                "on. Run.outputs has all of them.\n",
            )
        self._outbox.drain(now)

    @property
    def _leaves_out(self) -> bool:
        return self._full or bool(self._counted)

    def _output(self, rank: int, output: Output, now: float) -> None:
        if output.log:
            return
        tally = self._tallies[rank]
        # Before all else, shown or not: the notice gives the whole amount.
        tally.count(output.text)
        self._news = True
        if rank in self._counted:
            tally.add(output.text.splitlines())
            return
        key = (rank, output.stream)
        splitter = self._splitters[key]
        cut = splitter.feed(output.text, now)
        lines = cut.lines
        if splitter.partial:
            self._open.add(key)
        else:
            self._open.discard(key)
        if not lines:
            if not splitter.partial:
                self._live.rest(rank, output.stream, now)
            return
        tally.add(lines)
        if self._full:
            return
        # The first line may be the end of one on display, or of one for which a lower rank's stands.
        watched = (cut.continued and self._live.finish(rank, output.stream, lines[0], now)) or (
            cut.redrawn and self._live.hides(rank, now)
        )
        for line in lines[1:] if watched else lines:
            self._merger.push(rank, output.stream, line, now)

    def _progress(self, rank: int, bar: Progress, now: float) -> None:
        """Show a loop's bar as the live line; its last text stays as a line."""
        stream = f"bar-{bar.bar}"
        if self._full or not self.shows_bars:
            return
        if not bar.ended:
            if not self._merger.waiting(rank) and not self._rests:
                self._hide_line(now)
                self._live.show(rank, stream, bar.text, now)
        elif not bar.text:
            self._live.rest(rank, stream, now)
        elif not self._live.finish(rank, stream, bar.text, now) and not self._live.hides(rank, now):
            self._merger.push(rank, "stderr", bar.text, now)

    def _end_line(self, rank: int, stream: StreamName, now: float) -> None:
        """Take the unfinished line of a rank as finished."""
        splitter = self._splitters[rank, stream]
        self._open.discard((rank, stream))
        redrawn = splitter.redrawn
        line = splitter.take()
        if not line:
            return
        self._tallies[rank].add([line])
        if self._full or self._live.finish(rank, stream, line, now) or (redrawn and self._live.hides(rank, now)):
            return
        self._merger.push(rank, stream, line, now)

    def _only_count(self, rank: int, now: float) -> None:
        """Stop showing text of ``rank``, because some was left out: later text cannot be joined to earlier text."""
        if rank in self._counted:
            return
        for stream in _STREAMS:
            self._end_line(rank, stream, now)
        self._counted.add(rank)

    def _show(self, now: float) -> float | None:
        self._paint(self._merger.ready(now), now)
        if not self._full and not self._rests:
            self._watch(now)
        self._live.tick(now)
        self._rich.tick(now)
        if self._leaves_out and self._news and self._notice.due(now):
            self._news = False
            self._notice.show(self._words(over=False), now)
        return self._outbox.send(now)

    def _paint(self, ready: list[Merged], now: float) -> None:
        if ready and not self._lined:
            self._line_at = now + SILENT
        for merged in ready:
            if merged.stream == RICH:
                self._rich.paint(merged)
                continue
            if self._full or self._rich.line(merged, now):
                continue
            text = f"{label(merged.ranks, self._size)}{merged.text}\n"
            size = len(text) if text.isascii() else len(text.encode(errors="replace"))
            if self._shown + size > self._limit:
                # For good, although a shorter line might still fit: it would seem to follow the last one shown.
                self._full = True
                self._live.close(now)
                continue
            self._shown += size
            self._outbox.text("stderr" if merged.stream == "stderr" else "stdout", text)
            if merged.text.startswith(_OURS):
                self._explain(merged.text)

    def _watch(self, now: float) -> None:
        """Show the unfinished line that is most worth it, if there is one."""
        for rank, stream in sorted(self._open):
            splitter = self._splitters[rank, stream]
            if not splitter.redrawn and now < splitter.since + UNFINISHED:
                continue
            # Earlier output of the rank must be above it.
            if not self._merger.waiting(rank):
                self._hide_line(now)
                self._live.show(rank, stream, splitter.partial, now)

    def _words(self, *, over: bool) -> str:
        partials = {rank: self._splitters[rank, stream].partial for rank, stream in self._open}
        logs = self._logs
        if len(set(self._hosts.values())) > 1:
            logs = {rank: f"{self._hosts[rank]}:{path}" if rank in self._hosts else path for rank, path in logs.items()}
        return self._notice.words(self._tallies, partials, logs, shown=self._shown, over=over)
