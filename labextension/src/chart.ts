/**
 * The chart of one metric over steps: its mean, the range from lowest to highest, and one line for each chosen rank.
 *
 * Drag to zoom, double-click to show all steps. On the keyboard, arrows read values, + and - zoom, 0 shows all steps.
 */

import uPlot from "uplot";
import { layOut, extent, smoothed, type Range } from "./layout";
import { h, nameNode, placeBeside, setAttribute, setText } from "./dom";
import { outliers } from "./anomalies";
import type { Mark, Metric } from "./model";
import type { Theme } from "./theme";
import { count, number, rankList } from "./format";

export const HEIGHT = 182;

/** uPlot exports its own constant only as a type. */
const LOGARITHMIC = { distr: 3 } as uPlot.Scale;

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
  private frame = h("div", { class: "dtrain-plot", tabIndex: 0, role: "img" });
  private value = h("span", { class: "dtrain-value" });
  private note = h("span", { class: "dtrain-note" });
  private logButton = h("button", { class: "dtrain-small", type: "button", "aria-pressed": "false" }, "log");
  private readout = h("div", { class: "dtrain-readout", hidden: true, role: "status" });
  private plot: uPlot | null = null;
  private log = false;
  private drawn = "";
  private lines: number[] = [];
  private metric: Metric;
  private options: ChartOptions = { shown: new Set(), smoothing: 0, range: null, marks: [], ended: false };
  private cursor: number | null = null;
  private theme: Theme;

  constructor(
    metric: Metric,
    theme: Theme,
    private zoom: (range: Range | null) => void,
  ) {
    this.metric = metric;
    this.theme = theme;
    const name = nameNode(metric.name, "dtrain-metric");
    this.node = h(
      "figure",
      { class: "dtrain-chart" },
      h("figcaption", {}, name, this.value, this.note, this.logButton),
      this.frame,
      this.readout,
    );
    this.logButton.title = "Logarithmic scale";
    this.logButton.addEventListener("click", () => {
      this.log = !this.log;
      setAttribute(this.logButton, "aria-pressed", String(this.log));
      this.remake();
    });
    this.frame.addEventListener("keydown", (event) => {
      this.press(event);
    });
    this.frame.addEventListener("blur", () => {
      this.point(null);
    });
  }

  /** Draw `metric` unless the chart already shows this state; `version` must change whenever the data changes. */
  update(metric: Metric, version: number, options: ChartOptions): void {
    const width = Math.floor(this.frame.clientWidth);
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
    this.draw(width);
    this.showValue();
  }

  /** Redraw the chart in another theme. */
  setTheme(theme: Theme): void {
    this.theme = theme;
    this.remake();
  }

  destroy(): void {
    this.plot?.destroy();
    this.plot = null;
  }

  private remake(): void {
    const { metric, options } = this;
    this.destroy();
    this.drawn = "";
    this.update(metric, -1, options);
  }

  private draw(width: number): void {
    const { metric, options } = this;
    const ranks = [...metric.columns.keys()].filter((rank) => options.shown.has(rank)).sort((a, b) => a - b);
    const view = layOut(metric, options.range, width - 60, new Set(ranks));
    const positive = (line: (number | null)[]): (number | null)[] =>
      this.log ? line.map((value) => (value !== null && value > 0 ? value : null)) : line;
    const soften = (line: (number | null)[]): (number | null)[] => positive(smoothed(line, options.smoothing));
    const data = [
      view.steps,
      positive(view.high),
      positive(view.low),
      ...ranks.map((rank) => soften(view.ranks.get(rank) ?? [])),
      soften(view.mean),
    ] as uPlot.AlignedData;
    if (this.plot === null || this.lines.join() !== ranks.join()) {
      this.plot?.destroy();
      this.lines = ranks;
      this.plot = new uPlot(this.plotOptions(width, ranks), data, this.frame);
      this.plot.over.addEventListener("mouseleave", () => {
        this.point(null);
      });
      this.plot.over.addEventListener("dblclick", () => {
        this.zoom(null);
      });
    } else {
      if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
      this.plot.setData(data);
    }
    if (this.cursor !== null) this.read(this.cursor);
  }

  private plotOptions(width: number, ranks: number[]): uPlot.Options {
    const { theme } = this;
    const single = this.metric.columns.size <= 1 && this.metric.band === null;
    const axis: uPlot.Axis = {
      stroke: theme.text,
      font: "11px system-ui, sans-serif",
      grid: { stroke: theme.grid, width: 1 },
      ticks: { stroke: theme.grid, width: 1, size: 4 },
    };
    return {
      width,
      height: HEIGHT,
      padding: [10, 8, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
      },
      scales: {
        x: {
          time: false,
          range: (_, low, high) => {
            const [first, end] = this.options.range ?? extent(this.metric) ?? [low, high];
            return first < end ? [first, end] : [first - 0.5, end + 0.5];
          },
        },
        y: this.log ? LOGARITHMIC : {},
      },
      axes: [
        {
          ...axis,
          size: 26,
          gap: 2,
          space: 70,
          values: (_, splits) => splits.map(stepLabel),
          label: "step",
          labelSize: 12,
          labelGap: -4,
          labelFont: axis.font!,
        },
        {
          ...axis,
          size: 52,
          gap: 4,
          values: (_, splits) => splits.map((value: number | null) => (value === null ? "" : short(value))),
        },
      ],
      bands: single ? [] : [{ series: [1, 2], fill: theme.band }],
      series: [
        {},
        { stroke: "transparent", points: { show: false }, spanGaps: true, show: !single },
        { stroke: "transparent", points: { show: false }, spanGaps: true, show: !single },
        ...ranks.map((rank): uPlot.Series => ({
          stroke: theme.rank(rank),
          width: 1.2,
          dash: theme.dash(rank),
          points: { show: false },
          spanGaps: true,
          show: !single,
        })),
        {
          stroke: single ? theme.rank(this.lines[0] ?? 0) : theme.mean,
          width: single ? 1.5 : 2,
          points: { show: this.few, size: 4 },
          spanGaps: true,
        },
      ],
      hooks: {
        draw: [
          (plot) => {
            this.markNonFinite(plot);
          },
        ],
        setCursor: [
          (plot) => {
            if (plot.cursor.left !== undefined && plot.cursor.left >= 0) {
              this.point(plot.posToVal(plot.cursor.left, "x"), false);
            }
          },
        ],
        setSelect: [
          (plot) => {
            if (plot.select.width > 4) {
              const low = plot.posToVal(plot.select.left, "x");
              const high = plot.posToVal(plot.select.left + plot.select.width, "x");
              plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              this.zoom([low, high]);
            }
          },
        ],
      },
    };
  }

  private few = (_: uPlot, series: number): boolean => {
    const line = this.plot?.data[series];
    return line !== undefined && line.length < 3;
  };

  /** Draw a triangle at the upper edge for each value that is NaN or infinite, and a line at each marked step. */
  private markNonFinite(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const ratio = uPlot.pxRatio;
    const drawn = new Set<number>();
    ctx.save();
    ctx.fillStyle = this.theme.alarm;
    for (const { step } of this.metric.nonFinite) {
      const at = Math.round(plot.valToPos(step, "x", true));
      if (at < bbox.left - 1 || at > bbox.left + bbox.width + 1 || drawn.has(at)) continue;
      drawn.add(at);
      const size = 5 * ratio;
      ctx.beginPath();
      ctx.moveTo(at - size, bbox.top - size);
      ctx.lineTo(at + size, bbox.top - size);
      ctx.lineTo(at, bbox.top + size);
      ctx.closePath();
      ctx.fill();
    }
    for (const { step } of this.options.marks) {
      const at = plot.valToPos(step, "x", true);
      if (at >= bbox.left && at <= bbox.left + bbox.width) ctx.fillRect(at, bbox.top, 1.5 * ratio, bbox.height);
    }
    ctx.restore();
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
      this.frame,
      "aria-label",
      `${metric.name} over ${where}, mean ${this.options.ended ? "at the end" : "now"} ${value === null ? "unknown" : number(value)}${warning === "" ? "" : `. ${words.join("; ")}`}. ` +
        "Arrow keys read values, plus and minus zoom, 0 shows all steps.",
    );
  }

  /** Show the readout for `step`; null hides it. */
  private point(step: number | null, move = true): void {
    this.cursor = step;
    if (step === null) {
      this.readout.hidden = true;
      this.plot?.setCursor({ left: -10, top: -10 }, false);
      return;
    }
    if (move && this.plot !== null) {
      this.plot.setCursor({ left: this.plot.valToPos(step, "x"), top: 10 }, false);
    }
    this.read(step);
  }

  private read(step: number): void {
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
    this.readout.replaceChildren(head, list);
    this.readout.hidden = false;
    this.place(step);
  }

  /** Put the readout beside the cursor, on the side that has more room. */
  private place(step: number): void {
    const { plot } = this;
    if (plot === null) return;
    const left = plot.valToPos(step, "x") + plot.bbox.left / uPlot.pxRatio;
    placeBeside(this.readout, left, this.frame.clientWidth);
  }

  private press(event: KeyboardEvent): void {
    const { plot } = this;
    const whole = extent(this.metric);
    if (plot === null || whole === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = this.options.range ?? whole;
    const at = this.cursor ?? (low + high) / 2;
    const steps = plot.data[0];
    const index = plot.valToIdx(at);
    const around = (factor: number): Range => {
      const half = ((high - low) * factor) / 2;
      return [Math.max(whole[0], at - half), Math.min(whole[1], at + half)];
    };
    switch (event.key) {
      case "ArrowLeft":
        this.point(steps[Math.max(0, this.cursor === null ? steps.length - 1 : index - 1)] ?? at);
        break;
      case "ArrowRight":
        this.point(steps[Math.min(steps.length - 1, index + 1)] ?? at);
        break;
      case "+":
      case "=":
        this.zoom(around(0.5));
        break;
      case "-": {
        const wider = around(2);
        this.zoom(wider[0] <= whole[0] && wider[1] >= whole[1] ? null : wider);
        break;
      }
      case "0":
      case "Escape":
        this.zoom(null);
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

function stepLabel(value: number): string {
  if (!Number.isInteger(value)) return "";
  if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  return Math.abs(value) >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : String(value);
}

function short(value: number): string {
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(0).replace("e+", "e");
  return String(+value.toPrecision(4));
}
