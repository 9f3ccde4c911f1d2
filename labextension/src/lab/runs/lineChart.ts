/** What a chart of runs draws: its lines, what was there before smoothing faintly behind them, and its readout. */

import type uPlot from "uplot";
import { drawing, h } from "../../dom";
import type { Range } from "../../layout";
import type { Content } from "../../plot";
import type { Theme } from "../../theme";
import { aligned, extentOf, nearest, type Line } from "./lines";

/** The readout lists at most this many lines. */
const LISTED = 40;

/** Points of an evaluation that are drawn; where it has more, some of them. */
const POINTS = 60;

export interface LineChart {
  lines: readonly Line[];
  /** The name of the horizontal axis. */
  axis: string;
  log: boolean;
  range: Range | null;
  height: number;
  theme: Theme;
  formatX: (value: number) => string;
  /** For the axis. */
  formatY: (value: number) => string;
  /** For the readout. */
  formatValue: (value: number) => string;
  /** How the readout calls a place. */
  head: (at: string) => string;
  more: (count: number) => string;
}

export function lineChart(chart: LineChart): Content {
  const { lines, axis, log, range, height, theme, formatX, formatY } = chart;
  const unsmoothed = lines.flatMap(({ xs, raw, style }) => (raw === null ? [] : [{ xs, ys: raw, style }]));
  // A logarithmic axis has a tick for 2, 3 and so on; lines across the chart are for powers of ten.
  const whole = (value: number | null): boolean => value !== null && Math.abs(Math.log10(value) % 1) < 1e-9;
  const powers = {
    filter: (_: unknown, splits: number[]) => splits.map((value: number | null) => (whole(value) ? value : null)),
  };
  return {
    ...{ height, right: 10, theme, log, range, whole: extentOf(lines), formatX, formatY, bands: [], marks: [] },
    data: aligned([...unsmoothed, ...lines]),
    series: [
      ...unsmoothed.map(({ style }) => ({ stroke: theme.rank(style.colour), width: 1, alpha: 0.25 })),
      ...lines.map(({ xs, style, mark }) => ({
        stroke: theme.rank(style.colour),
        dash: theme.dashOfRun(style.dash),
        width: mark > 0 ? 1.2 : 1.6,
        // A lone point is not seen as a line.
        points: {
          show: mark > 0 || xs.length < 2,
          size: mark > 0 ? 7 : 5,
          fill: mark > 1 ? "transparent" : theme.rank(style.colour),
          filter: some,
        },
      })),
    ],
    bad: lines.flatMap((line) => line.bad),
    axes: {
      x: { size: 24, label: axis, labelSize: 16, labelGap: 0 },
      y: { size: 60, ...(log ? { grid: powers } : {}) },
    },
    fill: (readout, place, view) => {
      fill(chart, readout, place, view);
    },
  };
}

/** The indices of the points of a series that are drawn, spread evenly. */
function some(plot: uPlot, series: number, show: boolean): number[] | null {
  if (!show) return null;
  const found: number[] = [];
  plot.data[series]!.forEach((value, index) => {
    if (value != null) found.push(index);
  });
  const every = Math.ceil(found.length / POINTS);
  return every > 1 ? found.filter((_, index) => index % every === 0) : found;
}

/** A line's label; with its metric where the chart has several. */
export function labelOf(line: Line, lines: readonly Line[]): string {
  return lines.some(({ metric }) => metric !== line.metric) ? `${line.label} · ${line.metric}` : line.label;
}

/** Fill the readout with the values of all lines at `x`. */
function fill(chart: LineChart, readout: HTMLElement, x: number, [low, high]: Range): void {
  const { lines, theme, formatX, formatValue, head, more } = chart;
  const slack = (high - low) / 100;
  const found = lines.map((line) => ({ line, index: nearest(line.xs, x, slack) }));
  const places = found.flatMap(({ line, index }) => (index === null ? [] : [line.xs[index]!]));
  const at = places.sort((one, other) => Math.abs(one - x) - Math.abs(other - x))[0] ?? x;
  const rows = found.slice(0, LISTED).map(({ line, index }) => {
    const value = index === null ? "–" : formatValue(line.ys[index]!);
    const raw = index === null || line.raw === null ? "" : ` (${formatValue(line.raw[index]!)})`;
    return h("div", {}, swatch(theme, line), h("b", {}, value), raw, h("span", {}, labelOf(line, lines)));
  });
  if (found.length > LISTED) rows.push(h("div", {}, more(found.length - LISTED)));
  readout.replaceChildren(h("div", { class: "dtrain-readout-head" }, head(formatX(at))), ...rows);
  readout.style.columns = found.length > 12 ? "2" : "auto";
}

/** A piece of the line, with its colour and dashes, and the point of an evaluation. */
function swatch(theme: Theme, { style, mark }: Line): SVGSVGElement {
  const stroke = theme.rank(style.colour);
  const found = drawing("0 0 26 6", "dtrain-runs-swatch", {
    d: "M0 3h26",
    stroke,
    "stroke-dasharray": theme.dashOfRun(style.dash).join(" "),
    "stroke-width": "2.5",
  });
  if (mark > 0) {
    const point = found.firstElementChild!.cloneNode() as SVGElement;
    point.setAttribute("d", "M13 .5a2.5 2.5 0 1 1 0 5a2.5 2.5 0 1 1 0 -5");
    point.removeAttribute("stroke-dasharray");
    point.setAttribute("stroke-width", "1");
    point.setAttribute("fill", mark > 1 ? "var(--dtrain-page)" : stroke);
    found.append(point);
  }
  return found;
}
