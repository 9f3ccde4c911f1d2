"""The page of a report: one HTML file whose charts, pictures and rules are in it.

Its policy (:data:`POLICY`) is in the file itself and allows no script, no form and nothing from elsewhere, so that it
may be opened from a mail as from a server; the only style sheet is the one whose digest the policy names. Everything
that comes from runs is escaped. Nothing here fails on what runs have said.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.causes import distinct, is_echo, told_below
from jupyter_dtrain.core.events import Environment
from jupyter_dtrain.core.metrics import Columns, is_finite, is_main
from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.view import report_chart
from jupyter_dtrain.view.labels import ending_of, human, number, took
from jupyter_dtrain.view.report_chart import DrawnCurve, bars, chart, sample
from jupyter_dtrain.view.stored import mean_curve, moment, tails

from .differences import differences
from .media import Medium
from .report_data import GENERATOR, ReportedRun, RunsReport, shown_value, without_secrets

MOST_CHARTS: Final = 40
MOST_SYSTEM_CHARTS: Final = 12
MOST_BYTES: Final = 20_000_000
MEDIA_BYTES: Final = 14_000_000
"""Bytes of pictures and the like in one page."""

_POINTS: Final = 8000  # of all runs in one chart
_FEW_POINTS: Final = 80  # of one run at least
_SOURCE: Final = 400  # lines of a cell
_DIFF: Final = 300  # lines
_WIDE: Final = 400  # characters of a line of these
_BLOCK: Final = 32_000  # characters of other text
_TABLE: Final = 1500  # rows of the metrics
_TRACEBACKS: Final = 2
_RANKS: Final = 8  # that have a line each
_LEGEND: Final = 8  # runs of a chart that has its own legend
_KINDS: Final = {"cell": "The cell of", "uncommitted changes": "Uncommitted changes of"}
_STEPS: Final = 6  # of one name whose pictures are shown
_TOGETHER: Final = 8  # of one step
_ROWS: Final = 20  # of a table
_LETTERS: Final = 4000  # of a text
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"})
"""What a page shows as a picture: in an <img>, none of them can run anything."""
_RESOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "cpu": ("CPU of a rank and its workers, of one core", "percent"),
    "rss": ("Memory of a rank", "bytes"),
    "workers rss": ("Memory of workers", "bytes"),
    "gpu utilisation": ("GPU utilisation", "percent"),
    "gpu used": ("GPU memory, all processes", "bytes"),
    "gpu reserved": ("GPU memory of the rank", "bytes"),
    "gpu temperature": ("GPU temperature, °C", "number"),
    "gpu power": ("GPU power, W", "number"),
    "disk read": ("Read from disks of the host", "rate"),
    "disk written": ("Written to disks of the host", "rate"),
    "net received": ("Received from the network by the host", "rate"),
    "net sent": ("Sent to the network by the host", "rate"),
}
"""What ranks used, in words and with the unit of its chart, as the Runs tab has it."""

STYLE: Final = (
    ":root{color-scheme:light dark;--page:#fff;--box:#f6f7f8;--text:#1c1e21;--quiet:#5b6169;--grid:#d9dcdf;"
    "--alarm:#b8431a;--mark:#fff3d6;--add:#e2f5e5;--del:#fde7e4}"
    "@media screen and (prefers-color-scheme:dark){:root{--page:#15171a;--box:#1f2226;--text:#e6e8ea;--quiet:#a3a9b0;"
    "--grid:#3a3f45;--alarm:#f08a3c;--mark:#3d3420;--add:#17341f;--del:#43211d}}"
    "*{box-sizing:border-box}"
    "body{margin:0 auto;padding:28px 32px 60px;max-width:1480px;background:var(--page);color:var(--text);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif;overflow-wrap:anywhere}"
    "h1{font-size:26px;line-height:1.25;margin:0 0 4px}"
    "h2{font-size:19px;margin:34px 0 10px;padding-top:10px;border-top:1px solid var(--grid)}"
    "h3{font-size:15px;margin:18px 0 6px}"
    "p{margin:6px 0}.quiet{color:var(--quiet)}.words{white-space:pre-wrap;max-width:80ch}"
    ".wide{overflow-x:auto;margin:8px 0}"
    "table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums}"
    "th,td{text-align:left;vertical-align:top;padding:4px 14px 4px 0;border-bottom:1px solid var(--grid)}"
    "th{font-weight:600;color:var(--quiet)}td{min-width:4ch;max-width:44ch}"
    ".number{text-align:right;white-space:nowrap}.short{white-space:nowrap}"
    "tr.other td{background:var(--mark)}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr));gap:14px}"
    "figure{margin:0;background:var(--box);border-radius:8px;padding:12px 14px;min-width:0}"
    "figcaption{font-size:13px;font-weight:600}figcaption .quiet{font-weight:400}"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:12.5px;margin:6px 0 0;color:var(--quiet)}"
    ".sample{vertical-align:middle;margin-right:7px}.sample .line{stroke-width:2.5}"
    ".media{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,200px),1fr));gap:12px;margin:8px 0}"
    ".media.wider{grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr))}"
    ".media figcaption{font-weight:400;font-size:12px;margin-top:6px}"
    "img{max-width:100%;max-height:420px;display:block}img.small{width:100%;image-rendering:pixelated}"
    "audio{width:100%}"
    "pre{background:var(--box);border-radius:8px;padding:10px 14px;margin:8px 0;overflow-x:auto;max-height:520px;"
    "font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;overflow-wrap:normal}"
    "figure pre{padding:0;margin:0;max-height:240px;white-space:pre-wrap}"
    ".add{background:var(--add)}.del{background:var(--del)}.place{color:var(--quiet)}"
    "summary{cursor:pointer;color:var(--quiet);margin:6px 0}"
    ".bad-end{color:var(--alarm);font-weight:600}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;margin:8px 0;font-size:13.5px}"
    "dt{color:var(--quiet)}dd{margin:0}"
    "@media print{body{max-width:none;padding:0}pre,.wide{overflow:visible;max-height:none}"
    "figure,tr{break-inside:avoid}}"
    f"{report_chart.STYLE}"
)
POLICY: Final = (
    "default-src 'none'; img-src data:; media-src data:; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'"
)
"""What the page may load: nothing but what is in it. A server adds who may frame it."""


def page(report: RunsReport) -> str:
    """The report as a page, of :data:`MOST_BYTES` at most, unless its words alone take more."""
    text = "".join(_page(report, MEDIA_BYTES))
    return text if len(text) <= MOST_BYTES else "".join(_page(report, 0))


def words_page(words: str) -> str:
    """A page with words in place of a report."""
    return f"{_head(words[:100])}<p>{escape(words)}</p></body></html>\n"


def _head(title: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        f'<meta name="generator" content="{GENERATOR}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n"
    )


def _page(report: RunsReport, media: int) -> Iterator[str]:
    runs = report.runs
    yield _head(report.title)
    count = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
    made = f"{count}, written {moment(report.made)} by jupyter-dtrain"
    yield f'<header><h1>{escape(report.title)}</h1><p class="quiet">{escape(made)}</p></header>\n'
    if report.notes:
        yield f'<p class="words">{escape(report.notes)}</p>\n'
    if len(runs) > 1:
        yield f"<h2>Runs</h2>{_overview(report)}\n"
    yield from _charts(report)
    yield from _figures(report)
    yield from _configuration(report)
    yield from _differences(report)
    room = _Room(media)
    for place, one in enumerate(runs):
        yield from _run(report, one, room.share(len(runs) - place))
    yield "</body></html>\n"


def _overview(report: RunsReport) -> str:
    names = [name for name in report.metrics if is_main(name) and name != "epoch"][:4]
    headers = ["run", "", "outcome", *names, "took", "ranks", "started", "tags"]
    rows = []
    for one in report.runs:
        run = one.run
        cells = [_td(f"{sample(one.colour, one.dash)}{escape(one.name)}"), _td(escape(run.label), "short quiet")]
        cells.append(_td(_ending(one)))
        cells += [_td(escape(number(one.figures.get(name, (None,))[0])), "number") for name in names]
        cells += [_td(took(run.elapsed), "number"), _td(str(len(run.ranks)), "number")]
        cells += [_td(moment(run.started), "short"), _td(escape(", ".join(run.tags)))]
        rows.append("".join(cells))
    numeric = {*names, "took", "ranks"}
    return _table([(words, "number" if words in numeric else "") for words in headers], [(row, "") for row in rows])


def _ending(one: ReportedRun) -> str:
    words = escape(ending_of(one.run))
    return (
        words
        if one.run.outcome in ("ok", "running") and "but" not in words
        else f'<span class="bad-end">{words}</span>'
    )


def _charts(report: RunsReport) -> Iterator[str]:
    families = report.families()
    drawn = [_chart(report, title, members) for title, members in families[:MOST_CHARTS]]
    if not any(drawn):
        return
    several = any(len(ranks) > 1 for one in report.runs for ranks in one.metrics.values())
    words = "The mean over the ranks of each run." if several else ""
    if any('class="bad"' in one for one in drawn):
        words += " A triangle marks a step at which a value was NaN or infinite."
    if len(families) > MOST_CHARTS:
        words += f" {len(families) - MOST_CHARTS} more metrics have no chart here; the table below has them."
    yield "<h2>Charts</h2>" + (f'<p class="quiet">{words.strip()}</p>' if words else "")
    yield f'<div class="charts">{"".join(drawn)}</div>\n'


def _chart(report: RunsReport, title: str, members: Sequence[str]) -> str:
    curves = []
    there = []
    for one in report.runs:
        for place, name in enumerate(members):
            if name in one.metrics:
                curves.append(_curve(report, one, one.metrics[name], evaluates=place > 0))
                there.append(one)
    svg = chart(title, "step", curves)
    if not svg:
        return ""
    words = f' <span class="quiet">and, with dots, {escape(", ".join(members[1:]))}</span>' if members[1:] else ""
    return f"<figure><figcaption>{escape(members[0])}{words}</figcaption>{svg}{_legend(report, there)}</figure>"


def _curve(report: RunsReport, one: ReportedRun, series: Mapping[int, Columns], *, evaluates: bool) -> DrawnCurve:
    steps, values = mean_curve(series, max(_FEW_POINTS, _POINTS // len(report.runs) // 2))
    bad = sorted(
        {
            step
            for columns in series.values()
            for step, value in zip(columns.steps, columns.values, strict=True)
            if not is_finite(value)
        }
    )
    return DrawnCurve(one.colour, one.dash, steps, values, bad, evaluates)


def _legend(report: RunsReport, there: Iterable[ReportedRun]) -> str:
    if not 1 < len(report.runs) <= _LEGEND:
        return ""
    shown = "".join(
        f"<span>{sample(one.colour, one.dash)}{escape(_short(one.title))}</span>" for one in dict.fromkeys(there)
    )
    return f'<p class="legend">{shown}</p>'


def _figures(report: RunsReport) -> Iterator[str]:
    """Last, lowest and highest of each metric."""
    rows = []
    for name in report.metrics[: _TABLE // len(report.runs) + 1]:
        for one in report.runs:
            if name in one.figures and name != "epoch":
                cells = [_td(escape(name))]
                if len(report.runs) > 1:
                    cells.append(_td(f"{sample(one.colour, one.dash)}{escape(_short(one.title))}"))
                cells += [_td(escape(number(value)), "number") for value in one.figures[name]]
                rows.append(("".join(cells), ""))
    if rows:
        heads = [("metric", ""), *([("run", "")] if len(report.runs) > 1 else [])]
        heads += [(words, "number") for words in ("last", "lowest", "highest")]
        table = _table(heads, rows)
        yield f"<details{' open' if len(rows) <= 40 else ''}><summary>Metrics in numbers</summary>{table}</details>\n"  # noqa: PLR2004 — a screen


def _configuration(report: RunsReport) -> Iterator[str]:
    settings = report.settings
    if not settings:
        return
    several = len(report.runs) > 1
    heads = [("value", "")]
    heads += [(one.title, "") for one in report.runs] if several else [("", "")]
    other = [name for name in settings if report.differs(name)] if several else []
    yield "<h2>Configuration</h2>"
    if several:
        same = len(settings) - len(other)
        words = (
            f"{len(other)} of {len(settings)} values differ between the runs." if other else "All runs have the same."
        )
        yield f'<p class="quiet">{words if same or other else ""}</p>'
    rows = []
    for name in settings:
        cells = _td(escape(name)) + "".join(_td(escape(one.value(name))) for one in report.runs)
        rows.append((cells, "other" if name in other else ""))
    styled = [(sample(one.colour, one.dash) if several else "") for one in report.runs]
    yield _table(heads, rows, ["", *styled]) + "\n"


def _differences(report: RunsReport) -> Iterator[str]:
    """How the code, the versions and the commits of the runs differ from those of the first run."""
    first, *others = report.runs
    if not others:
        return
    found = differences([one.run for one in report.runs], [one.commit for one in report.runs])
    titles = {one.run.id: one.title for one in report.runs}
    parts = [
        f"<h3>{_KINDS.get(one.title, one.title)} {escape(titles[one.run])}</h3>"
        f"{_diff(without_secrets(one.diff).splitlines())}"
        for one in found.code
    ]
    if rows := [*found.commits, *found.versions]:
        heads = [("", ""), *((one.title, "") for one in report.runs)]
        shown = [
            (_td(escape(row.name)) + "".join(_td(escape(_words(value))) for value in row.values), "") for row in rows
        ]
        parts.append(f"<h3>Versions and commits</h3>{_table(heads, shown)}")
    if parts:
        yield f'<h2>What differs</h2><p class="quiet">Beside the configuration, and from {escape(first.title)}.</p>'
        yield "".join(parts) + "\n"


def _words(value: object) -> str:
    return "" if value is None else without_secrets(str(value))


class _Room:
    """How many bytes of pictures and the like a page, or one run in it, may still have."""

    def __init__(self, size: int, of: _Room | None = None) -> None:
        self._size = size
        self._of = of

    def share(self, among: int) -> _Room:
        """The share of one run."""
        return _Room(self._size // among, self)

    def take(self, size: int) -> bool:
        """Take so many bytes; return whether they were there."""
        if size > self._size or (self._of is not None and not self._of.take(size)):
            return False
        self._size -= size
        return True


def _run(report: RunsReport, one: ReportedRun, room: _Room) -> Iterator[str]:
    run = one.run
    mark = sample(one.colour, one.dash) if len(report.runs) > 1 else ""
    yield f"<h2>{mark}{escape(one.title)}</h2>"
    yield f"<p>{_ending(one)}, {took(run.elapsed)} on {count_ranks(run.ranks)}, started {moment(run.started)}</p>"
    yield from (f'<p class="bad-end">{escape(line)}</p>' for line in one.failures)
    if run.note:
        yield f'<p class="words">{escape(run.note)}</p>'
    yield _facts_list(one)
    yield from _tracebacks(one)
    yield from _media(one, room)
    yield from _happenings(one)
    yield from _system(one, len(report.runs))
    if source := one.source.splitlines():
        lines = source[:_SOURCE]
        if len(source) > len(lines):
            lines.append(f"… {len(source) - len(lines)} more lines")
        yield f"<details><summary>Its cell, {len(source)} lines</summary>{_pre(lines)}</details>"
    if said := tails(run):
        yield f"<details><summary>The end of its output</summary>{_pre(map(without_secrets, said))}</details>"
    yield from _packages(run.environments)
    yield "\n"


def _facts_list(one: ReportedRun) -> str:
    run = one.run
    hosts = list(dict.fromkeys(part.host for part in run.parts.values() if part.host))
    devices = list(dict.fromkeys(name for told in run.environments.values() for name in told.devices))
    facts = {
        "run": run.label,
        "tags": ", ".join(run.tags),
        "group": run.group,
        "notebook": f"{run.notebook}{'' if run.cell is None else f', cell [{run.cell}]'}" if run.notebook else "",
        "hosts": ", ".join(hosts),
        "devices": ", ".join(devices),
        "goes on with": f"{one.before}, from step {run.first_step} on" if one.before else "",
    }
    if (commit := one.commit) is not None:
        changed = ", with uncommitted changes" if commit.dirty else ""
        branch = f" on {commit.branch}" if commit.branch else ""
        facts["commit"] = without_secrets(f"{commit.hash[:12]}{branch}{changed}: {commit.message}".removesuffix(": "))
        facts["repository"] = without_secrets(commit.remote)
    if environments := run.environments:
        told = environments[min(environments)]
        facts |= {
            "command": " ".join(told.command),
            "Python": told.python,
            "system": ", ".join(
                words
                for words in (
                    told.platform,
                    f"{told.cpus} processors" if told.cpus else "",
                    human(told.memory) if told.memory else "",
                )
                if words
            ),
        }
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in facts.items() if words)
    return f"<dl>{items}</dl>"


def _tracebacks(one: ReportedRun) -> Iterator[str]:
    found = [(error, ranks) for error, ranks in distinct(one.run.errors, {}) if not is_echo(error)]
    for error, ranks in found[:_TRACEBACKS]:
        told = without_secrets(told_below("", error, one.run.source))
        yield f"<details><summary>Traceback of {count_ranks(ranks)}</summary>{_pre(told.splitlines())}</details>"


def _system(one: ReportedRun, runs: int) -> Iterator[str]:
    """What its ranks used, over time."""
    resources = one.run.resources
    drawn = []
    for name, (title, unit) in _RESOURCES.items():
        if name in resources:
            points = max(_FEW_POINTS, _POINTS // (10 * runs))
            some = sorted(resources[name].items())[:_RANKS]
            curves = [_over_time(one, rank, columns.thinned(points)) for rank, columns in some]
            if svg := chart(title, "seconds since its start", curves, unit):
                ranks = "".join(f"<span>{sample(rank % 8, rank % 5)}rank {rank}</span>" for rank, _ in some)
                legend = f'<p class="legend">{ranks}</p>' if len(some) > 1 else ""
                drawn.append(f"<figure><figcaption>{escape(title)}</figcaption>{svg}{legend}</figure>")
    if drawn:
        inside = "".join(drawn[:MOST_SYSTEM_CHARTS])
        words = "System: what each rank used" if len(one.run.ranks) > 1 else "System: what it used"
        if len(one.run.ranks) > _RANKS:
            words = f"System: what the first {_RANKS} ranks used"
        yield f'<details><summary>{words}</summary><div class="charts">{inside}</div></details>'


def _over_time(one: ReportedRun, rank: int, columns: Columns) -> DrawnCurve:
    times = [time - one.run.started for time in columns.times]
    several = len(one.run.ranks) > 1
    return DrawnCurve(
        rank % 8 if several else one.colour, rank % 5 if several else one.dash, times, list(columns.values)
    )


def _happenings(one: ReportedRun) -> Iterator[str]:
    """What happened to it, as who interrupted it, and what was asked of its loop."""
    lines = [f"{took(max(0.0, when - one.run.started)):>10}  {words}" for when, words in one.happenings]
    lines += [f"{f'step {act.step}':>10}  {act.words}: {act.said}" for act in one.run.acts]
    if lines:
        yield f"<details open><summary>What happened</summary>{_pre(map(without_secrets, lines[:_DIFF]))}</details>"


def _media(one: ReportedRun, room: _Room) -> Iterator[str]:
    """What it has logged beside numbers: some steps of each name."""
    names: dict[str, list[Medium]] = {}
    for medium in one.run.media:
        names.setdefault(medium.name, []).append(medium)
    logged = one.run.media_logged
    # Histograms of weights are many, and what people look at first has the room before them.
    for name, media in sorted(names.items(), key=lambda item: item[1][0].kind == "histogram"):
        shown = [_medium(one, medium) for medium in _some(media) if room.take(_size(medium))]
        total = max(len(media), sum(logged.get(name, {}).values()))
        drawn = [figure for figure in shown if figure]
        words = f"{len(drawn)} of {total}" if total > len(drawn) else ""
        wide = " wider" if media[0].kind in ("figure", "table", "text", "audio") else ""
        if drawn:
            yield f'<h3>{escape(name)} <span class="quiet">{words}</span></h3>'
            yield f'<div class="media{wide}">{"".join(drawn)}</div>'
        else:
            yield f'<p class="quiet">{escape(name)}: {total}, which this page has no room for or cannot show.</p>'


def _size(medium: Medium) -> int:
    """The bytes that it takes in a page, where pictures and sound are in base64."""
    return medium.bytes * 4 // 3 if medium.kind in ("image", "figure", "audio") else medium.bytes


def _some(media: Sequence[Medium]) -> Iterator[Medium]:
    """Those of a few steps, the last one among them, of the lowest rank that has them."""
    steps = sorted({medium.step for medium in media})
    if len(steps) > _STEPS:
        steps = [steps[round(place * (len(steps) - 1) / (_STEPS - 1))] for place in range(_STEPS)]
    for step in steps:
        at = [medium for medium in media if medium.step == step]
        rank = min(medium.rank for medium in at)
        yield from [medium for medium in at if medium.rank == rank][:_TOGETHER]


def _medium(one: ReportedRun, medium: Medium) -> str:
    """A picture, histogram, text, table or sound; empty for what cannot be shown."""
    data = medium.data
    inside = ""
    try:
        if medium.mime in _IMAGES:
            small = ' class="small"' if _is_small(data) else ""
            inside = f'<img{small} alt="{escape(medium.name)}" src="data:{medium.mime};base64,{_base64(data)}">'
        elif medium.mime == "audio/wav":
            inside = f'<audio controls preload="none" src="data:audio/wav;base64,{_base64(data)}"></audio>'
        elif medium.kind == "histogram":
            told = msgspec.json.decode(data, type=readable(dict[str, Any]))
            inside = bars(medium.name, told["edges"], told["counts"], one.colour)
        elif medium.kind == "table":
            inside = _rows_of(msgspec.json.decode(data, type=readable(dict[str, Any])))
        elif medium.mime.startswith("text/"):
            text = without_secrets(data.decode("utf-8", "replace"))
            inside = _pre([text[:_LETTERS] + ("…" if len(text) > _LETTERS else "")])
    except (*UNREADABLE, ValueError, TypeError, KeyError):  # of a later version
        return ""
    if not inside:
        return ""
    where = f"step {medium.step}" + (f" · rank {medium.rank}" if len(one.run.ranks) > 1 else "")
    more = "".join(f"<br>{escape(words)}" for words in (medium.caption, medium.note) if words)
    return f'<figure>{inside}<figcaption><span class="quiet">{where}</span>{more}</figcaption></figure>'


def _rows_of(told: dict[str, Any]) -> str:
    rows = told["rows"]
    heads = [(str(name), "") for name in told["columns"]]
    shown = [("".join(_td(escape(shown_value(value))) for value in row), "") for row in rows[:_ROWS]]
    total = told.get("total", len(rows))
    more = f'<p class="quiet">{total - len(shown)} more rows</p>' if total > len(shown) else ""
    return _table(heads, shown) + more


def _is_small(data: bytes) -> bool:
    """Whether it is a PNG file of few pixels, which a page shows larger, with its pixels sharp."""
    return data[:4] == b"\x89PNG" and len(data) > 24 and int.from_bytes(data[16:20], "big") <= 96  # noqa: PLR2004


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _packages(environments: Mapping[int, Environment]) -> Iterator[str]:
    if environments and (packages := environments[min(environments)].packages):
        lines = [f"{name}=={version}" for name, version in sorted(packages.items())]
        yield f"<details><summary>Versions of {len(lines)} packages</summary>{_pre(lines)}</details>"


def _diff(lines: Sequence[str]) -> str:
    """A unified diff with its lines marked."""
    shown = [line[:_WIDE] for line in lines[:_DIFF]]
    kinds = {"+": "add", "-": "del", "@": "place"}
    marked = [
        f'<span class="{kinds[line[0]]}">{escape(line)}</span>' if line[:1] in kinds else escape(line) for line in shown
    ]
    if len(lines) > len(shown):
        marked.append(f"… {len(lines) - len(shown)} more lines")
    return f"<pre>{chr(10).join(marked)}</pre>"


def _pre(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"<pre>{escape(text[:_BLOCK])}{'…' if len(text) > _BLOCK else ''}</pre>"


def _td(inside: str, kind: str = "") -> str:
    return f'<td class="{kind}">{inside}</td>' if kind else f"<td>{inside}</td>"


def _table(
    heads: Sequence[tuple[str, str]], rows: Sequence[tuple[str, str]], before: Sequence[str] | None = None
) -> str:
    """A table from the texts and classes of its heads, and the cells and classes of its rows. ``before``: the heads."""
    marks = before or [""] * len(heads)
    head = "".join(
        f'<th scope="col"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{mark}{escape(words)}</th>'
        for (words, kind), mark in zip(heads, marks, strict=True)
    )
    body = "".join(f'<tr class="{kind}">{cells}</tr>' if kind else f"<tr>{cells}</tr>" for cells, kind in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _short(words: str) -> str:
    return words if len(words) <= 48 else words[:47] + "…"  # noqa: PLR2004 — a legend's line
