/**
 * Where the time of a run's steps goes: a stacked bar for each rank or for ranks that are alike, and the same over time.
 *
 * Bars are as long as a step takes, so rows compare. What causes a slow step is marked by a sign as well as by its
 * colour, waiting parts are striped, and each row says in words what it shows. Nodes are kept between two updates, so
 * that a bar moves to its new length. The panel shows a `StepTimeView`; the Runs tab puts its parts below each other.
 */

import "../style/stepTime.css";
import { addressOf, anchorOfReason, explained, h, placeBeside, setAttribute, setText } from "./dom";
import { duration } from "./format";
import { STEP_PARTS, type Course, type StepRow, type StepTimePart } from "./generated";
import type { Range } from "./layout";
import type { Mark } from "./model";
import { Plot, type Content } from "./plot";
import { decodeBytes, decodeFloats } from "./runDocument";
import type { Theme } from "./theme";

const HEIGHT = 168;

/** The widths in pixels of a letter in a bar, and of the room beside its words. */
const LETTER = 6.3;
const PADDING = 8;

/** The parts in which a rank only waits. */
const WAITING = new Set(["communication", "device"]);

export interface BarRow {
  label: string;
  title: string;
  seconds: number;
  shares: readonly number[];
  slow: boolean;
  /** What its communication consists of: shares of a step by call, the longest first. */
  calls: readonly (readonly [call: string, share: number])[];
}

/** The most letters of ranks that are named beside a bar; more are counted. */
const NAMED = 14;

/** A row of the document as a bar; `names` are those of the document's calls. */
export function barOf(row: StepRow, names: readonly string[] = [], label?: string): BarRow {
  const [ranks, count, seconds, shares, slow, waits = []] = row;
  label ??= ranks.length > NAMED && count > 1 ? `${count} ranks` : ranks;
  const words =
    slow === 1 ? `${ranks}: the others wait for ${count === 1 ? "it" : "them"}, or do not share this` : ranks;
  const calls = names.map((name, index) => [name, waits[index] ?? 0] as const);
  return { label, title: words, seconds, shares, slow: slow === 1, calls };
}

/** A share of a step as per cent. */
export function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}

/** What a bar shows, in words. */
export function wordsOf(parts: readonly string[], row: BarRow): string {
  const told = parts.flatMap((part, index) => {
    const share = row.shares[index] ?? 0;
    if (share < 0.005) return [];
    const calls = part === "communication" ? row.calls.filter(([, spent]) => spent >= 0.005) : [];
    const split = calls.map(([call, spent]) => (calls.length > 1 ? `${call} ${percent(spent)}` : call)).join(", ");
    return [`${nameOf(part)} ${percent(share)}${split && ` (${split})`}`];
  });
  return `${row.label}${row.slow ? ", slow" : ""}, ${duration(row.seconds)} a step: ${told.join(", ")}`;
}

function nameOf(part: string): string {
  return STEP_PARTS[part] ?? part;
}

/** The words on a piece of a bar that is `width` pixels wide. */
export function labelOf(part: string, share: number, width: number): string {
  const short = percent(share);
  const long = `${nameOf(part)} ${short}`;
  return [long, short].find((words) => LETTER * words.length + PADDING <= width) ?? "";
}

/** Black or white, whichever has more contrast to `colour`, by WCAG's measure. */
export function inkOn(colour: string): string {
  const [red = 0, green = 0, blue = 0] = (colour.slice(1).match(/../g) ?? []).map((text) => {
    const part = parseInt(text, 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.187 ? "#111" : "#fff";
}

interface Row {
  node: HTMLElement;
  label: HTMLElement;
  bar: HTMLElement;
  pieces: HTMLElement[];
  time: HTMLElement;
}

/** The bars of some rows, which share a scale. */
export class SpentBars {
  readonly node: HTMLElement;
  private list = h("div", { class: "dtrain-spent-rows", role: "list" });
  private readout = h("div", { class: "dtrain-readout", hidden: true });
  private rows: Row[] = [];
  private shown: { parts: readonly string[]; rows: readonly BarRow[]; theme: Theme } | null = null;
  /** The row and the part under the pointer. */
  private pointed: [row: number, part: number] | null = null;

  constructor() {
    this.node = h("div", { class: "dtrain-spent" }, this.list, this.readout);
    this.list.addEventListener("pointermove", (event) => {
      this.point(event.target as HTMLElement, event.clientX);
    });
    this.list.addEventListener("pointerleave", () => {
      this.pointed = null;
      this.readout.hidden = true;
    });
  }

  update(parts: readonly string[], rows: readonly BarRow[], theme: Theme): void {
    this.shown = { parts, rows, theme };
    while (this.rows.length > rows.length) this.rows.pop()!.node.remove();
    const longest = Math.max(...rows.map((row) => row.seconds));
    const room = this.rows[0]?.bar.parentElement?.clientWidth ?? 0;
    rows.forEach((row, index) => {
      let own = this.rows[index];
      if (own === undefined) {
        own = makeRow(index);
        this.rows.push(own);
        this.list.append(own.node);
      }
      const length = longest > 0 ? row.seconds / longest : 0;
      setText(own.label, `${row.slow ? "▲ " : ""}${row.label}`);
      setAttribute(own.label, "title", row.title);
      own.node.classList.toggle("dtrain-spent-slow", row.slow);
      setAttribute(own.node, "aria-label", wordsOf(parts, row));
      setText(own.time, duration(row.seconds));
      own.bar.style.width = `${(100 * length).toFixed(2)}%`;
      fill(own, parts, row, theme, index, room * length);
    });
    // The room is known once a row is on the page.
    if (room === 0 && (this.rows[0]?.bar.parentElement?.clientWidth ?? 0) > 0) this.update(parts, rows, theme);
    else this.read();
  }

  private point(target: HTMLElement, x: number): void {
    const row = target.closest<HTMLElement>("[data-row]");
    if (row === null) return;
    this.pointed = [Number(row.dataset.row), Number(target.closest<HTMLElement>("[data-part]")?.dataset.part ?? -1)];
    this.read();
    const { left, width } = this.node.getBoundingClientRect();
    placeBeside(this.readout, x - left, width);
  }

  /** Fill the readout with the row under the pointer. */
  private read(): void {
    const { shown, pointed, readout } = this;
    const row = pointed === null ? undefined : shown?.rows[pointed[0]];
    readout.hidden = row === undefined;
    if (shown === null || row === undefined) return;
    const lines = shown.parts.flatMap((part, index) => {
      const share = row.shares[index] ?? 0;
      if (share < 0.0005) return [];
      const line = lineOf(part, share, share * row.seconds, shown.theme);
      line.classList.toggle("dtrain-spent-pointed", index === pointed![1]);
      return part === "communication" ? [line, ...callsOf(row)] : [line];
    });
    const head = h(
      "div",
      { class: "dtrain-readout-head" },
      row.label,
      h("span", {}, ` ${duration(row.seconds)} a step`),
    );
    readout.replaceChildren(head, h("div", { class: "dtrain-spent-readout" }, ...lines));
    const node = this.rows[pointed![0]]!.node;
    readout.style.top = `${node.offsetTop + node.offsetHeight + 2}px`;
  }
}

/** A line of a readout: a part, its time and its share. */
function lineOf(part: string, share: number, seconds: number, theme: Theme): HTMLElement {
  return h("div", {}, swatch(part, theme), h("span", {}, nameOf(part)), ...amounts(share, seconds));
}

/** Lines of a readout below that of communication: the calls that it consists of. */
function callsOf(row: BarRow): HTMLElement[] {
  return row.calls.flatMap(([call, share]) => {
    if (share < 0.0005) return [];
    return [
      h("div", { class: "dtrain-spent-call" }, h("i"), h("span", {}, call), ...amounts(share, share * row.seconds)),
    ];
  });
}

function amounts(share: number, seconds: number): HTMLElement[] {
  const fine = share < 0.095 ? `${(100 * share).toFixed(1)} %` : percent(share);
  return [h("b", {}, duration(seconds)), h("span", {}, fine)];
}

function swatch(part: string, theme: Theme): HTMLElement {
  const found = h("i", { class: WAITING.has(part) ? "dtrain-spent-swatch dtrain-spent-waits" : "dtrain-spent-swatch" });
  found.style.backgroundColor = theme.part(part);
  return found;
}

function makeRow(index: number): Row {
  const label = h("span", { class: "dtrain-spent-label" });
  const bar = h("span", { class: "dtrain-spent-bar" });
  const time = h("span", { class: "dtrain-spent-time" });
  const track = h("span", { class: "dtrain-spent-track", "aria-hidden": "true" }, bar);
  const node = h("div", { class: "dtrain-spent-row", role: "listitem", "data-row": `${index}` }, label, track, time);
  return { node, label, bar, pieces: [], time };
}

function fill(own: Row, parts: readonly string[], row: BarRow, theme: Theme, index: number, width: number): void {
  while (own.pieces.length > parts.length) own.pieces.pop()!.remove();
  parts.forEach((part, place) => {
    let piece = own.pieces[place];
    if (piece === undefined) {
      piece = h("span", { class: "dtrain-spent-piece", "data-part": `${place}` });
      own.pieces.push(piece);
      own.bar.append(piece);
    }
    const share = row.shares[place] ?? 0;
    const colour = theme.part(part);
    piece.classList.toggle("dtrain-spent-waits", WAITING.has(part));
    piece.hidden = share < 0.002;
    piece.style.flexGrow = share.toFixed(4);
    piece.style.backgroundColor = colour;
    piece.style.color = inkOn(colour);
    setAttribute(piece, "data-row", `${index}`);
    setText(piece, labelOf(part, share, share * width));
  });
}

/** The legend of `parts`, in the order of a bar. */
export function legendOf(parts: readonly string[], theme: Theme): HTMLElement[] {
  return parts.map((part) => h("span", {}, swatch(part, theme), nameOf(part)));
}

/** A course, decoded: for each stretch of steps its place, the seconds of a step, and the share of each part. */
export interface Stretches {
  /** The step in the middle of each stretch. */
  places: number[];
  whole: Range;
  seconds: Float32Array;
  shares: Float32Array[];
}

export function decodeCourse([, first, width, seconds, shares]: Course, parts: readonly string[]): Stretches {
  const took = decodeFloats(seconds);
  const fine = decodeBytes(shares);
  const count = took.length;
  return {
    places: Array.from(took, (_, index) => first + (index + 0.5) * width),
    whole: [first, first + count * width],
    seconds: took,
    shares: parts.map((_, part) =>
      Float32Array.from(fine.subarray(part * count, (part + 1) * count), (one) => one / 255),
    ),
  };
}

/** Milliseconds of the parts of a step, each on top of those before it, from end to end: rows as uPlot wants them. */
export function stacked({ places, whole, seconds, shares }: Stretches): (number | null)[][] {
  const ends = (row: (number | null)[]): (number | null)[] => [row[0] ?? null, ...row, row.at(-1) ?? null];
  const tops: (number | null)[][] = [places.map(() => 0)];
  for (const share of shares) {
    const below = tops.at(-1)!;
    tops.push(
      below.map((top, index) => {
        const took = seconds[index]!;
        return top === null || Number.isNaN(took) ? null : top + 1000 * took * share[index]!;
      }),
    );
  }
  return [[whole[0], ...places, whole[1]], ...tops.map(ends)];
}

export interface CourseOptions {
  theme: Theme;
  range: Range | null;
  marks: readonly Mark[];
}

/** The course of a run, as areas on top of each other. */
export class CourseChart {
  readonly node: HTMLElement;
  private plot: Plot;
  private drawn = "";

  constructor(zoom: (range: Range | null) => void, caption: HTMLElement) {
    this.plot = new Plot(zoom);
    this.plot.readout.setAttribute("role", "status");
    this.node = h("figure", { class: "dtrain-chart dtrain-course" }, caption, this.plot.frame, this.plot.readout);
  }

  /** Draw `course`, whose name is `title`, unless the chart shows it already. */
  update(title: string, parts: readonly string[], course: Course, { theme, range, marks }: CourseOptions): void {
    const { width } = this.plot;
    const steps = marks.map((mark) => mark.step);
    const drawn = [width, theme.dark, theme.text, range?.join() ?? "", steps.join(), parts.join(), course.join()].join(
      "|",
    );
    if (width <= 0 || drawn === this.drawn) return;
    this.drawn = drawn;
    const stretches = decodeCourse(course, parts);
    const data = stacked(stretches);
    const line = theme.dark ? "#111" : "#fff";
    const content: Content = {
      ...{ height: HEIGHT, right: 18, theme, log: false, range, whole: stretches.whole, bad: [], marks: steps, data },
      series: [
        { stroke: "transparent", width: 0 },
        ...parts.map((_, index) => ({ stroke: line, width: index < parts.length - 1 ? 0.75 : 0, spanGaps: false })),
      ],
      bands: parts.map((part, index) => ({ series: [index + 2, index + 1], fill: theme.part(part) })),
      axes: { x: { size: 26, label: "step", labelSize: 12, labelGap: -4 }, y: { size: 52 } },
      formatX: (value) => (Number.isInteger(value) ? String(value) : ""),
      formatY: (value) => (value >= 1000 ? `${+(value / 1000).toPrecision(3)} s` : `${+value.toPrecision(3)} ms`),
      fill: (readout, place) => {
        read(readout, place, stretches, parts, theme);
      },
    };
    this.plot.update(content);
    const last = stretches.seconds.at(-1);
    setAttribute(
      this.plot.frame,
      "aria-label",
      `Time of a step over the run, ${title}: ${last === undefined ? "" : `now ${duration(last)} a step. `}` +
        "Arrow keys read values, plus and minus zoom, 0 shows all steps.",
    );
  }

  destroy(): void {
    this.plot.destroy();
  }
}

/** Fill the readout with the parts of a step in the stretch around `place`. */
function read(
  readout: HTMLElement,
  place: number,
  { places, whole, seconds, shares }: Stretches,
  parts: readonly string[],
  theme: Theme,
): void {
  const width = (whole[1] - whole[0]) / places.length;
  const index = Math.max(0, Math.min(places.length - 1, Math.floor((place - whole[0]) / width)));
  const took = seconds[index]!;
  const lines = parts.flatMap((part, one) => {
    const share = shares[one]![index]!;
    return share < 0.002 ? [] : [lineOf(part, share, share * took, theme)];
  });
  const from = Math.round(whole[0] + index * width);
  const to = Math.max(from, Math.round(whole[0] + (index + 1) * width) - 1);
  const steps = from === to ? `step ${from}` : `steps ${from} to ${to}`;
  const head = h("div", { class: "dtrain-readout-head" }, steps, h("span", {}, ` ${duration(took)} a step`));
  readout.replaceChildren(head, h("div", { class: "dtrain-spent-readout" }, ...lines.reverse()));
}

/** Sentences on why the steps are slow, each with what to try. */
export class Sentences {
  readonly node = h("ul", { class: "dtrain-why", "aria-label": "Why steps are slow" });

  update(step: StepTimePart | null): void {
    const slow = step?.slow ?? [];
    this.node.hidden = slow.length === 0;
    while (this.node.childElementCount > slow.length) this.node.lastElementChild!.remove();
    slow.forEach(([kind, , words, advice], index) => {
      let item = this.node.children[index];
      if (item === undefined) {
        item = h("li", {}, h("span", {}), " ", h("span", {}), " ", explained(""));
        this.node.append(item);
      }
      setText(item.children[0]!, words);
      setText(item.children[1]!, advice);
      setAttribute(item.children[2]!, "href", addressOf(anchorOfReason(kind)));
    });
  }
}

/** What a panel shows about the time of its run's steps: the sentences, and below them, until a person folds it, the rest. */
export class StepTimeView {
  readonly node: HTMLElement;
  private sentences = new Sentences();
  private about = h("span", {});
  private bars = new SpentBars();
  private legend = h("div", { class: "dtrain-spent-legend" });
  private choice = h("select", { "aria-label": "Ranks of the course" });
  private course: CourseChart;
  private folding: HTMLDetailsElement;
  private key = "";

  /** It calls `changed` when a person has changed what it shows. */
  constructor(zoom: (range: Range | null) => void, changed: () => void) {
    const caption = h("figcaption", {}, h("b", {}, "Over the run"), this.choice);
    this.course = new CourseChart(zoom, caption);
    const left = h("div", { class: "dtrain-spent-side" }, this.bars.node, this.legend);
    this.folding = h(
      "details",
      { class: "dtrain-step-time" },
      h("summary", {}, h("b", {}, "Time of a step"), this.about),
      h("div", { class: "dtrain-spent-body" }, left, this.course.node),
    );
    this.folding.open = true;
    this.folding.addEventListener("toggle", changed);
    this.choice.addEventListener("change", changed);
    this.node = h("div", { hidden: true }, this.sentences.node, this.folding);
  }

  update(step: StepTimePart | null, ended: boolean, options: CourseOptions): void {
    this.node.hidden = step === null;
    this.sentences.update(step);
    if (step === null) return;
    const batches = step.batches ?? 1;
    const about = [
      duration(step.mean[2]),
      ended ? "mean of the run" : "mean of the last seconds",
      batches > 1 ? `${batches} batches a step${eachBatch(step, batches)}` : "",
      step.on_host === true ? "host’s clock" : "",
    ];
    setText(this.about, about.filter((words) => words !== "").join(" · "));
    setAttribute(
      this.about,
      "title",
      step.on_host === true ? "A GPU computes; times show when the host launched its work, and when it waited" : null,
    );
    if (!this.folding.open) return;
    const { theme } = options;
    this.bars.update(
      step.parts,
      step.rows.map((row) => barOf(row, step.calls)),
      theme,
    );
    const courses = step.courses ?? [];
    const titles = courses.map(([ranks]) => (ranks.length === 0 ? meanTitle(step.mean[1]) : `rank ${ranks[0]}`));
    const key = [step.parts.join(), theme.dark, titles.join()].join("|");
    if (key !== this.key) {
      this.key = key;
      this.legend.replaceChildren(...legendOf(step.parts, theme));
      const chosen = this.choice.value;
      this.choice.replaceChildren(...titles.map((title) => new Option(title, title)));
      this.choice.value = titles.includes(chosen) ? chosen : (titles[0] ?? "");
    }
    this.choice.disabled = titles.length < 2;
    const place = Math.max(0, titles.indexOf(this.choice.value));
    this.course.node.hidden = courses.length === 0;
    if (courses.length > 0) this.course.update(titles[place]!, step.parts, courses[place]!, options);
  }

  destroy(): void {
    this.course.destroy();
  }
}

/** The time that a batch spends in the model, where it was measured. */
function eachBatch({ parts, mean: [, , seconds, shares] }: StepTimePart, batches: number): string {
  const [forward, backward] = ["forward", "backward"].map((part) => shares[parts.indexOf(part)] ?? 0);
  if (!forward || !backward) return "";
  return `, each ${duration((seconds * (forward + backward)) / batches)} forward and backward`;
}

function meanTitle(count: number): string {
  return count === 1 ? "its rank" : `mean of ${count} ranks`;
}
