/**
 * The chart of one metric over steps: its mean, the range from lowest to highest, and one line for each chosen rank.
 *
 * It holds what a panel's chart has of its own: a caption with the newest value and warnings, the lines, and the words
 * of the readout. What the mouse and the keyboard do is in plot.ts.
 */

import { layOut, extent, smoothed, type Range } from "./layout";
import { h, nameNode, setAttribute, setText } from "./dom";
import { outliers } from "./anomalies";
import type { Mark, Metric } from "./model";
import { Plot, type Content } from "./plot";
import type { Theme } from "./theme";
import { count, number, rankList, short } from "./format";

const HEIGHT = 182;

/** The readout lists the values of at most this many ranks. */
const LISTED = 64;

export interface ChartOptions {
  /** The ranks that are drawn as lines of their own. */
  shown: ReadonlySet<number>;
  /** The weight of exponential smoothing, from 0 (none) to below 1. */
  smoothing: number;
  /** The steps in view; null for all. */
  range: Range | null;
  /** Steps that are marked, and why. */
  marks: readonly Mark[];
  /** Whether the run has ended. */
  ended: boolean;
}

export class Chart {
  readonly node: HTMLElement;
  private value = h("span", { class: "dtrain-value" });
  private note = h("span", { class: "dtrain-note" });
  private logButton = h("button", { class: "dtrain-small", type: "button", "aria-pressed": "false" }, "log");
  private plot: Plot;
  private log = false;
  private drawn = "";
  private options: ChartOptions = { shown: new Set(), smoothing: 0, range: null, marks: [], ended: false };

  constructor(
    private metric: Metric,
    private theme: Theme,
    zoom: (range: Range | null) => void,
  ) {
    this.plot = new Plot(zoom);
    this.plot.readout.setAttribute("role", "status");
    const name = nameNode(metric.name, "dtrain-metric");
    this.node = h(
      "figure",
      { class: "dtrain-chart" },
      h("figcaption", {}, name, this.value, this.note, this.logButton),
      this.plot.frame,
      this.plot.readout,
    );
    this.logButton.title = "Logarithmic scale";
    this.logButton.addEventListener("click", () => {
      this.log = !this.log;
      setAttribute(this.logButton, "aria-pressed", String(this.log));
      this.redraw();
    });
  }

  /** Draw `metric` unless the chart already shows this state; `version` must change whenever the data changes. */
  update(metric: Metric, version: number, options: ChartOptions): void {
    const { width } = this.plot;
    const drawn = [
      version,
      width,
      options.smoothing,
      options.range?.join() ?? "",
      options.marks.map((mark) => mark.step).join(),
      options.ended,
      [...options.shown].join(),
      this.log,
      this.theme.dark,
    ].join("|");
    if (width <= 0 || drawn === this.drawn) return;
    this.drawn = drawn;
    this.metric = metric;
    this.options = options;
    this.plot.update(this.content(width));
    this.showValue();
  }

  /** Redraw the chart in another theme. */
  setTheme(theme: Theme): void {
    this.theme = theme;
    this.redraw();
  }

  destroy(): void {
    this.plot.destroy();
  }

  private redraw(): void {
    this.drawn = "";
    this.update(this.metric, -1, this.options);
  }

  /** What is drawn in a plot that is `width` pixels wide. */
  private content(width: number): Content {
    const { metric, options, theme } = this;
    const ranks = [...metric.columns.keys()].filter((rank) => options.shown.has(rank)).sort((a, b) => a - b);
    const view = layOut(metric, options.range, width - 60, new Set(ranks));
    const single = metric.columns.size <= 1 && metric.band === null;
    const soften = (line: (number | null)[]): (number | null)[] => smoothed(line, options.smoothing);
    return {
      ...{ height: HEIGHT, right: 18, theme, log: this.log, range: options.range, whole: extent(metric) },
      data: [
        view.steps,
        view.high,
        view.low,
        ...ranks.map((rank) => soften(view.ranks.get(rank) ?? [])),
        soften(view.mean),
      ],
      bands: single ? [] : [{ series: [1, 2], fill: theme.band }],
      series: [
        { stroke: "transparent", show: !single },
        { stroke: "transparent", show: !single },
        ...ranks.map((rank) => ({ stroke: theme.rank(rank), width: 1.2, dash: theme.dash(rank), show: !single })),
        {
          stroke: single ? theme.rank(ranks[0] ?? 0) : theme.mean,
          width: single ? 1.5 : 2,
          points: { show: view.steps.length < 3, size: 4 },
        },
      ],
      bad: metric.nonFinite.map((one) => one.step),
      marks: options.marks.map((mark) => mark.step),
      axes: { x: { size: 26, label: "step", labelSize: 12, labelGap: -4 }, y: { size: 52 } },
      formatX: stepLabel,
      formatY: short,
      fill: (readout, step) => {
        this.fill(readout, step);
      },
    };
  }

  /** Show the newest values and any warnings beside the metric's name. */
  private showValue(): void {
    const { metric } = this;
    const value = metric.value(this.options.ended);
    setText(this.value, value === null ? "" : number(value));
    const notes = new Map<string, number[]>();
    for (const [rank, words] of outliers(metric)) notes.set(words, [...(notes.get(words) ?? []), rank]);
    const words = [...notes].map(([what, ranks]) =>
      ranks.length > 1 ? `ranks ${rankList(ranks)} ${what.replace("is", "are")}` : `rank ${ranks[0]} ${what}`,
    );
    const nonFinite = metric.nonFinite;
    if (nonFinite.length > 0) {
      const first = nonFinite[0]!;
      const kind = { nan: "NaN", inf: "∞" }[first.kind] ?? "−∞";
      const ranks = [...new Set(nonFinite.map((one) => one.rank))];
      const where =
        nonFinite.length > ranks.length ? `since step ${count(first.step)}` : `at step ${count(first.step)}`;
      words.push(`${kind} on ${ranks.length > 1 ? "ranks" : "rank"} ${rankList(ranks)} ${where}`);
    }
    words.push(...this.options.marks.map((mark) => mark.words));
    const warning = words.length > 0 ? `▲ ${words.join("; ")}` : "";
    setText(this.note, warning);
    setAttribute(this.note, "title", warning === "" ? null : warning);
    const range = extent(metric);
    const where = range === null ? "no points yet" : `steps ${count(range[0])} to ${count(range[1])}`;
    setAttribute(
      this.plot.frame,
      "aria-label",
      `${metric.name} over ${where}, mean ${this.options.ended ? "at the end" : "now"} ${value === null ? "unknown" : number(value)}${warning === "" ? "" : `. ${words.join("; ")}`}. ` +
        "Arrow keys read values, plus and minus zoom, 0 shows all steps.",
    );
  }

  /** Fill the readout with the values at `step`. */
  private fill(readout: HTMLElement, step: number): void {
    const { metric, theme } = this;
    const values: [number, number, number][] = [];
    for (const [rank, column] of metric.columns) {
      const found = column.at(step);
      if (found !== null) values.push([rank, found.value, found.step]);
    }
    values.sort((one, other) => one[0] - other[0]);
    const finite = values.map((value) => value[1]).filter((value) => Number.isFinite(value));
    let mean = finite.reduce((sum, value) => sum + value, 0) / Math.max(1, finite.length);
    let low = Math.min(...finite);
    let high = Math.max(...finite);
    let at = values[0]?.[2] ?? step;
    if (metric.band !== null && metric.band.steps.length > 0) {
      const { steps } = metric.band;
      let best = 0;
      for (let index = 1; index < steps.length; index += 1) {
        if (Math.abs(steps[index]! - step) < Math.abs(steps[best]! - step)) best = index;
      }
      at = steps[best]!;
      mean = metric.band.mean[best]!;
      low = metric.band.low[best]!;
      high = metric.band.high[best]!;
    }
    const head = h("div", { class: "dtrain-readout-head" }, `step ${count(at)}`);
    if (values.length !== 1) {
      head.append(h("span", {}, ` mean ${number(mean)} · ${number(low)} to ${number(high)}`));
    }
    const listed =
      values.length <= LISTED
        ? values
        : [...values]
            .sort((one, other) => Math.abs(other[1] - mean) - Math.abs(one[1] - mean))
            .slice(0, LISTED)
            .sort((one, other) => one[0] - other[0]);
    const list = h("div", { class: "dtrain-readout-ranks" });
    for (const [rank, value] of listed) {
      const dot = h("span", { class: "dtrain-dot" });
      dot.style.background = theme.rank(rank);
      list.append(h("span", {}, dot, `${rank}: ${number(value)}`));
    }
    if (listed.length < values.length) {
      list.append(h("span", {}, `and ${values.length - listed.length} more, closer to the mean`));
    }
    readout.replaceChildren(head, list);
  }
}

function stepLabel(value: number): string {
  if (!Number.isInteger(value)) return "";
  if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  return Math.abs(value) >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : String(value);
}
