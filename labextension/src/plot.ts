/**
 * A chart on a canvas, drawn by uPlot: its axes, a readout at the cursor, and what the mouse and the keyboard do.
 *
 * Drag to zoom, double-click to show all. On the keyboard, arrows read values, + and - zoom, 0 shows all. What a chart
 * draws and what its readout says is its `Content`: chart.ts has that of a panel, lab/runs/lineChart.ts that of the Runs
 * tab. Neither owns the uPlot object, which is made anew here whenever something differs that uPlot cannot change.
 */

import uPlot from "uplot";
import { h, placeBeside } from "./dom";
import type { Range } from "./layout";
import type { Theme } from "./theme";

export interface Content {
  height: number;
  /** The space to the right of the lines, in pixels. */
  right: number;
  theme: Theme;
  log: boolean;
  /** The places in increasing order, and the values there of each of `series`; null where one has none. */
  data: (number | null)[][];
  /** A series has no points, and no gaps where it has no value, unless it says otherwise. */
  series: uPlot.Series[];
  bands: uPlot.Band[];
  /** The places in view; null for all. */
  range: Range | null;
  /** The first and the last place; null without points. */
  whole: Range | null;
  /** Places with a NaN or infinite value. */
  bad: readonly number[];
  /** Places that are marked with a line from top to bottom. */
  marks: readonly number[];
  /** The sizes and the label of each axis. */
  axes: { x: uPlot.Axis; y: uPlot.Axis };
  /** How numbers are written beside each axis. */
  formatX: (value: number) => string;
  formatY: (value: number) => string;
  /** Fills the readout with the values at `place`, while the chart shows the places in `view`. */
  fill: (readout: HTMLElement, place: number, view: Range) => void;
}

/** How all axes look. */
export function axisOf(theme: Theme): uPlot.Axis {
  return {
    stroke: theme.text,
    font: "11px system-ui, sans-serif",
    labelFont: "11px system-ui, sans-serif",
    grid: { stroke: theme.grid, width: 1 },
    ticks: { stroke: theme.grid, width: 1, size: 4 },
  };
}

export class Plot {
  /** The canvas and what takes the keyboard; whoever owns the plot gives it a label. */
  readonly frame = h("div", { class: "dtrain-plot", tabIndex: 0, role: "img" });
  /** Belongs into the frame, or into a parent of it that begins at the same left edge. */
  readonly readout = h("div", { class: "dtrain-readout", hidden: true });
  private plot: uPlot | null = null;
  private content: Content | null = null;
  private shape = "";
  private cursor: number | null = null;

  /** The plot calls `zoom` with the places that a person wants to see, null for all; its owner updates it with them. */
  constructor(private zoom: (range: Range | null) => void) {
    this.frame.addEventListener("keydown", (event) => {
      this.press(event);
    });
    this.frame.addEventListener("blur", () => {
      this.point(null);
    });
  }

  /** The width in pixels that the page gives; 0 while the plot is not shown. */
  get width(): number {
    return Math.floor(this.frame.clientWidth);
  }

  /** The places and the values in view. */
  get view(): { x: Range; y: Range } | null {
    const { x, y } = this.plot?.scales ?? {};
    if (x?.min == null || x.max == null || y?.min == null || y.max == null) return null;
    return { x: [x.min, x.max], y: [y.min, y.max] };
  }

  /** Draw `content`, unless the plot shows this very object in the width that it has now. */
  update(content: Content): void {
    const { width, plot } = this;
    const { theme, log, series, bands, axes, right, height } = content;
    this.frame.style.minHeight = `${height}px`;
    if (width <= 0 || (content === this.content && width === plot?.width)) return;
    this.content = content;
    const positive = (value: number | null): number | null => (value !== null && value > 0 ? value : null);
    const [places = [], ...lines] = content.data;
    const data = [places, ...lines.map((line) => (log ? line.map(positive) : line))] as uPlot.AlignedData;
    // All that uPlot takes only when it starts. Functions are left out: those that it was given ask for the content.
    const shape = JSON.stringify([theme, log, series, bands, axes, right]);
    if (plot === null || this.shape !== shape) {
      plot?.destroy();
      this.shape = shape;
      this.plot = new uPlot(this.optionsOf(content, width), data, this.frame);
      this.plot.over.addEventListener("mouseleave", () => {
        this.point(null);
      });
      this.plot.over.addEventListener("dblclick", () => {
        this.zoom(null);
      });
    } else {
      if (plot.width !== width || plot.height !== height) plot.setSize({ width, height });
      plot.setData(data);
    }
    if (this.cursor !== null) this.read(this.cursor);
  }

  destroy(): void {
    this.plot?.destroy();
    this.plot = null;
  }

  private optionsOf({ theme, log, series, bands, axes, right, height }: Content, width: number): uPlot.Options {
    const look = axisOf(theme);
    const axis = (own: uPlot.Axis, format: (value: number) => string): uPlot.Axis => ({
      ...look,
      ...own,
      grid: { ...look.grid, ...own.grid },
      values: (_, splits) => splits.map((value: number | null) => (value === null ? "" : format(value))),
    });
    return {
      width,
      height,
      padding: [10, right, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: {
        x: { time: false, range: () => [...this.places()] },
        // uPlot exports its constant for a logarithmic scale only as a type.
        y: log ? { distr: 3 } : {},
      },
      axes: [
        axis({ gap: 2, space: 70, ...axes.x }, (value) => this.content!.formatX(value)),
        axis({ gap: 4, ...axes.y }, (value) => this.content!.formatY(value)),
      ],
      bands,
      series: [{}, ...series.map((one) => ({ points: { show: false }, spanGaps: true, ...one }))],
      hooks: {
        draw: [
          (plot) => {
            this.mark(plot);
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

  /** The places in view: a single one gets some room on both sides. */
  private places(): Range {
    const [low, high] = this.content!.range ?? this.content!.whole ?? [0, 1];
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
  }

  /** Draw a triangle at the upper edge for each place with a NaN or infinite value, and a line at each marked place. */
  private mark(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const { theme, bad, marks } = this.content!;
    const size = 5 * uPlot.pxRatio;
    const found = new Set(bad.map((place) => Math.round(plot.valToPos(place, "x", true))));
    ctx.save();
    ctx.fillStyle = theme.alarm;
    for (const at of found) {
      if (at < bbox.left - 1 || at > bbox.left + bbox.width + 1) continue;
      ctx.beginPath();
      ctx.moveTo(at - size, bbox.top - size);
      ctx.lineTo(at + size, bbox.top - size);
      ctx.lineTo(at, bbox.top + size);
      ctx.fill();
    }
    for (const place of marks) {
      const at = plot.valToPos(place, "x", true);
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.fillRect(at, bbox.top, 1.5 * uPlot.pxRatio, bbox.height);
    }
    ctx.restore();
  }

  /** Show the readout for `place`; null hides it. */
  private point(place: number | null, move = true): void {
    const { plot } = this;
    this.cursor = place;
    if (place === null) {
      this.readout.hidden = true;
      plot?.setCursor({ left: -10, top: -10 }, false);
      return;
    }
    if (move) plot?.setCursor({ left: plot.valToPos(place, "x"), top: 10 }, false);
    this.read(place);
  }

  private read(place: number): void {
    const { plot, readout } = this;
    if (plot === null) return;
    this.content!.fill(readout, place, this.places());
    readout.hidden = false;
    placeBeside(readout, plot.valToPos(place, "x") + plot.bbox.left / uPlot.pxRatio, this.frame.clientWidth);
  }

  private press(event: KeyboardEvent): void {
    const { plot } = this;
    const whole = this.content?.whole ?? null;
    if (plot === null || whole === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = this.places();
    const at = this.cursor ?? (low + high) / 2;
    const places = plot.data[0];
    const index = plot.valToIdx(at);
    const around = (factor: number): Range => {
      const half = ((high - low) * factor) / 2;
      return [Math.max(whole[0], at - half), Math.min(whole[1], at + half)];
    };
    switch (event.key) {
      case "ArrowLeft":
        this.point(places[Math.max(0, this.cursor === null ? places.length - 1 : index - 1)] ?? at);
        break;
      case "ArrowRight":
        this.point(places[Math.min(places.length - 1, index + 1)] ?? at);
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
