/** What a chart of runs draws: its lines, what was there before smoothing faintly behind them, and its readout. */

import { drawing, h } from "../../dom";
import type { Range } from "../../layout";
import type { Content } from "../../plot";
import type { Theme } from "../../theme";
import { aligned, extentOf, nearest, type Line } from "./lines";

/** The readout lists at most this many lines. */
const LISTED = 40;

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
      ...lines.map(({ xs, style }) => ({
        stroke: theme.rank(style.colour),
        dash: theme.dashOfRun(style.dash),
        width: 1.6,
        // A lone point is not seen as a line.
        points: { show: xs.length < 2, size: 5 },
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
    return h("div", {}, swatch(theme, line), h("b", {}, value), raw, h("span", {}, line.label));
  });
  if (found.length > LISTED) rows.push(h("div", {}, more(found.length - LISTED)));
  readout.replaceChildren(h("div", { class: "dtrain-readout-head" }, head(formatX(at))), ...rows);
  readout.style.columns = found.length > 12 ? "2" : "auto";
}

/** A piece of the line, with its colour and dashes. */
function swatch(theme: Theme, { style }: Line): SVGSVGElement {
  return drawing("0 0 26 6", "dtrain-runs-swatch", {
    d: "M0 3h26",
    stroke: theme.rank(style.colour),
    "stroke-dasharray": theme.dashOfRun(style.dash).join(" "),
    "stroke-width": "2.5",
  });
}
