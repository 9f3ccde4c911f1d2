/**
 * One chart on a canvas: its lines, what was there before smoothing faintly behind them, and a readout at the cursor.
 *
 * Drag to zoom, double-click to show all. On the keyboard, arrows read values, + and - zoom, 0 shows all.
 */

import uPlot from "uplot";
import { h, placeBeside } from "../../dom";
import type { Range } from "../../layout";
import type { Theme } from "../../theme";
import { aligned, extentOf, nearest, type Line } from "./lines";

/** The readout lists at most this many lines. */
const LISTED = 40;

export interface Content {
  lines: readonly Line[];
  /** The name of the horizontal axis. */
  axis: string;
  /** Describes the chart to those who do not see it. */
  label: string;
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

export class Plot {
  readonly node = h("div", { class: "dtrain-plot dtrain-runs-plot", tabIndex: 0, role: "img" });
  private readout = h("div", { class: "dtrain-readout", hidden: true });
  private plot: uPlot | null = null;
  private shape = "";
  private drawn: unknown[] = [];
  private content: Content | null = null;
  private cursor: number | null = null;

  constructor(private zoom: (range: Range | null) => void) {
    this.node.append(this.readout);
    this.node.addEventListener("keydown", (event) => {
      this.press(event);
    });
    this.node.addEventListener("blur", () => {
      this.point(null);
    });
  }

  update(content: Content): void {
    const width = Math.floor(this.node.clientWidth);
    const { lines, log, range, height, theme, axis } = content;
    this.node.setAttribute("aria-label", content.label);
    this.node.style.minHeight = `${height}px`;
    const drawn = [lines, log, range?.join(), height, theme, width, axis];
    if (width <= 0 || drawn.every((one, index) => one === this.drawn[index])) return;
    this.drawn = drawn;
    this.content = content;
    const shape = JSON.stringify([
      log,
      theme.dark,
      content.axis,
      lines.map((line) => [line.style.colour, line.style.dash, line.raw !== null, line.xs.length < 2]),
    ]);
    const data = aligned([
      ...lines.flatMap((line) => (line.raw === null ? [] : [{ xs: line.xs, ys: line.raw }])),
      ...lines,
    ]);
    if (log) {
      for (const row of data.slice(1)) {
        row.forEach((value, index) => {
          if (value !== null && value <= 0) row[index] = null;
        });
      }
    }
    if (this.plot === null || this.shape !== shape) {
      this.destroy();
      this.shape = shape;
      this.plot = new uPlot(this.options(width), data as uPlot.AlignedData, this.node);
      this.plot.over.addEventListener("mouseleave", () => {
        this.point(null);
      });
      this.plot.over.addEventListener("dblclick", () => {
        this.zoom(null);
      });
    } else {
      if (this.plot.width !== width || this.plot.height !== height) this.plot.setSize({ width, height });
      this.plot.setData(data as uPlot.AlignedData);
    }
    if (this.cursor !== null) this.read(this.cursor);
  }

  /** The places and the values in view. */
  get view(): { x: Range; y: Range } | null {
    const { x, y } = this.plot?.scales ?? {};
    if (x?.min == null || x.max == null || y?.min == null || y.max == null) return null;
    return { x: [x.min, x.max], y: [y.min, y.max] };
  }

  destroy(): void {
    this.plot?.destroy();
    this.plot = null;
  }

  private options(width: number): uPlot.Options {
    const { theme, lines, log, height } = this.content!;
    const axis: uPlot.Axis = {
      stroke: theme.text,
      font: "11px system-ui, sans-serif",
      grid: { stroke: theme.grid, width: 1 },
      ticks: { stroke: theme.grid, width: 1, size: 4 },
    };
    // A logarithmic axis has a tick for 2, 3 and so on; lines across the chart are for powers of ten.
    const whole = (value: number | null): boolean => value !== null && Math.abs(Math.log10(value) % 1) < 1e-9;
    const powers: uPlot.Axis.Grid = {
      ...axis.grid,
      filter: (_, splits) => splits.map((value: number | null) => (whole(value) ? value : null)),
    };
    const labelled = (format: (value: number) => string): uPlot.Axis => ({
      ...axis,
      values: (_, splits) => splits.map((value: number | null) => (value === null ? "" : format(value))),
    });
    const common = { points: { show: false }, spanGaps: true };
    return {
      width,
      height,
      padding: [10, 10, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: {
        x: { time: false, range: () => this.places() },
        // uPlot has its constant for a logarithmic scale only as a type.
        y: log ? { distr: 3 } : {},
      },
      axes: [
        {
          ...labelled((value) => this.content!.formatX(value)),
          ...{ size: 24, gap: 2, space: 70, label: this.content!.axis, labelSize: 16, labelGap: 0 },
          labelFont: axis.font!,
        },
        { ...labelled((value) => this.content!.formatY(value)), size: 60, gap: 4, ...(log ? { grid: powers } : {}) },
      ],
      series: [
        {},
        ...lines
          .filter((line) => line.raw !== null)
          .map((line): uPlot.Series => ({ ...common, stroke: theme.rank(line.style.colour), width: 1, alpha: 0.25 })),
        ...lines.map((line): uPlot.Series => ({
          ...common,
          stroke: theme.rank(line.style.colour),
          dash: theme.dashOfRun(line.style.dash),
          width: 1.6,
          // A lone point is not seen as a line.
          points: { show: line.xs.length < 2, size: 5 },
        })),
      ],
      hooks: {
        draw: [
          (plot) => {
            this.markBad(plot);
          },
        ],
        setCursor: [
          (plot) => {
            const { left } = plot.cursor;
            if (left !== undefined && left >= 0) this.point(plot.posToVal(left, "x"), false);
          },
        ],
        setSelect: [
          (plot) => {
            const { left, width: wide } = plot.select;
            if (wide <= 4) return;
            const range: Range = [plot.posToVal(left, "x"), plot.posToVal(left + wide, "x")];
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            this.zoom(range);
          },
        ],
      },
    };
  }

  private places(): [number, number] {
    const [low, high] = this.content!.range ?? extentOf(this.content!.lines) ?? [0, 1];
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
  }

  /** Draw a triangle at the upper edge for each place with a NaN or infinite value. */
  private markBad(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const size = 5 * uPlot.pxRatio;
    const [low, high] = this.places();
    const found = new Set(
      this.content!.lines.flatMap((line) => line.bad)
        .filter((x) => x >= low && x <= high)
        .map((x) => Math.round(plot.valToPos(x, "x", true))),
    );
    ctx.save();
    ctx.fillStyle = this.content!.theme.alarm;
    for (const at of found) {
      ctx.beginPath();
      ctx.moveTo(at - size, bbox.top - size);
      ctx.lineTo(at + size, bbox.top - size);
      ctx.lineTo(at, bbox.top + size);
      ctx.fill();
    }
    ctx.restore();
  }

  /** Show the readout for the place `x`; null hides it. */
  private point(x: number | null, move = true): void {
    this.cursor = x;
    if (x === null) {
      this.readout.hidden = true;
      this.plot?.setCursor({ left: -10, top: -10 }, false);
      return;
    }
    if (move && this.plot !== null) this.plot.setCursor({ left: this.plot.valToPos(x, "x"), top: 10 }, false);
    this.read(x);
  }

  private read(x: number): void {
    const { lines, theme, formatX, formatValue, head, more } = this.content!;
    const [low, high] = this.places();
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
    this.readout.replaceChildren(h("div", { class: "dtrain-readout-head" }, head(formatX(at))), ...rows);
    this.readout.hidden = false;
    this.readout.style.columns = found.length > 12 ? "2" : "auto";
    const { plot } = this;
    if (plot === null) return;
    const left = plot.valToPos(x, "x") + plot.bbox.left / uPlot.pxRatio;
    placeBeside(this.readout, left, this.node.clientWidth);
  }

  private press(event: KeyboardEvent): void {
    const { plot, content } = this;
    if (plot === null || content === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const whole = extentOf(content.lines);
    if (whole === null) return;
    const [low, high] = this.places();
    const at = this.cursor ?? (low + high) / 2;
    const xs = plot.data[0];
    const index = plot.valToIdx(at);
    const around = (factor: number): Range => {
      const half = ((high - low) * factor) / 2;
      return [Math.max(whole[0], at - half), Math.min(whole[1], at + half)];
    };
    switch (event.key) {
      case "ArrowLeft":
        this.point(xs[Math.max(0, this.cursor === null ? xs.length - 1 : index - 1)] ?? at);
        break;
      case "ArrowRight":
        this.point(xs[Math.min(xs.length - 1, index + 1)] ?? at);
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

const SVG = "http://www.w3.org/2000/svg";

/** A piece of the line, with its colour and dashes. */
function swatch(theme: Theme, { style }: Line): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "dtrain-runs-swatch");
  svg.setAttribute("viewBox", "0 0 26 6");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", "M0 3h26");
  path.setAttribute("stroke", theme.rank(style.colour));
  path.setAttribute("stroke-dasharray", theme.dashOfRun(style.dash).join(" "));
  path.setAttribute("stroke-width", "2.5");
  svg.append(path);
  return svg;
}
