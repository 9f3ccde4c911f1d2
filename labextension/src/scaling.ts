/** A report about a cell's scaling: speed-up against ranks, how time is spent, a table, and what holds each size back. */

import "../style/scaling.css";
import uPlot from "uplot";
import { h } from "./dom";
import type { ScalingDocument, SizeRow } from "./generated";
import { axisOf } from "./plot";
import { onThemeChange, themeOf } from "./theme";

/** The newest version that this code can read. */
const VERSION = 1;
const HEIGHT = 220;

/** The shares of time, in the order in which they are drawn; work is what no cause takes. */
const PARTS = ["work", "communication", "slow rank", "data", "processors"];

/** Check that `data`, from a notebook or a kernel, is a report. Throws an Error that says what is wrong with it. */
export function readScaling(data: unknown): ScalingDocument {
  const found = (data ?? {}) as Partial<ScalingDocument>;
  if (typeof found.version !== "number" || !Array.isArray(found.sizes) || !Array.isArray(found.conclusions)) {
    throw new Error("This is not a jupyter-dtrain scaling report.");
  }
  if (found.version > VERSION) {
    throw new Error("This report was saved by a newer jupyter-dtrain: update the package to view it.");
  }
  return found as ScalingDocument;
}

/** Show the report `data` in `node`, by `view` if there is one; returns the view, or null where `data` is none. */
export function show(node: HTMLElement, data: unknown, view: ScalingView | null): ScalingView | null {
  try {
    const document = readScaling(data);
    const shown = view ?? new ScalingView(node);
    shown.update(document);
    return shown;
  } catch (error) {
    view?.destroy();
    node.textContent = (error as Error).message;
    return null;
  }
}

export class ScalingView {
  private frame = h("div", { class: "dtrain-scaling-plot", role: "img" });
  private plot: uPlot | null = null;
  private document: ScalingDocument | null = null;
  private ends: (() => void)[];

  constructor(private root: HTMLElement) {
    root.classList.add("dtrain-run", "dtrain-scaling");
    const observer = new ResizeObserver(() => {
      this.draw();
    });
    observer.observe(root);
    this.ends = [
      onThemeChange(() => {
        this.draw();
      }),
      () => {
        observer.disconnect();
      },
    ];
  }

  /** Show `document` in place of the one before. */
  update(document: ScalingDocument): void {
    this.document = document;
    const measured = document.sizes.filter((size) => size.speedup !== null);
    const charts = h(
      "div",
      { class: "dtrain-scaling-charts" },
      h("figure", {}, h("figcaption", {}, `Speed-up over ${ranks(measured[0]?.ranks ?? 1)}`), this.frame, key()),
      h("figure", {}, h("figcaption", {}, "How ranks spend their time"), ...measured.map(bar), legend(measured)),
    );
    charts.hidden = measured.length < 2;
    this.root.replaceChildren(
      h("div", { class: "dtrain-scaling-caption" }, document.summary),
      charts,
      table(document.sizes),
      h("ul", { class: "dtrain-scaling-words" }, ...document.conclusions.map((words) => h("li", {}, words))),
    );
    const said = measured.map((size) => `${ranks(size.ranks)} ${size.speedup!.toFixed(2)}`).join(", ");
    this.frame.setAttribute("aria-label", `Speed-up: ${said}`);
    this.draw();
  }

  destroy(): void {
    for (const end of this.ends) end();
    this.plot?.destroy();
    this.root.replaceChildren();
  }

  private draw(): void {
    const width = Math.floor(this.frame.clientWidth);
    const sizes = this.document?.sizes.filter((size) => size.speedup !== null) ?? [];
    if (width <= 0 || sizes.length < 2) return;
    this.plot?.destroy();
    const theme = themeOf(this.root);
    const axis = axisOf(theme);
    const places = sizes.map((size) => size.ranks);
    const highest = Math.max(...sizes.map((size) => Math.max(size.linear, size.speedup_high ?? size.speedup!)));
    const room = (places.at(-1)! - places[0]!) * 0.06;
    this.plot = new uPlot(
      {
        width,
        height: HEIGHT,
        padding: [10, 8, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: {
          x: { time: false, range: () => [places[0]! - room, places.at(-1)! + room] },
          y: { range: () => [0, highest * 1.08] },
        },
        axes: [
          { ...axis, size: 26, gap: 2, splits: () => places, values: (_, splits) => splits.map(String) },
          { ...axis, size: 36, gap: 4 },
        ],
        series: [
          {},
          { stroke: theme.text, width: 1, dash: [6, 4], points: { show: false } },
          { stroke: theme.rank(0), width: 2, points: { show: true, size: 7, fill: theme.rank(0) } },
        ],
        hooks: {
          draw: [
            (plot) => {
              drawRanges(plot, sizes, theme.rank(0));
            },
          ],
        },
      },
      [places, sizes.map((size) => size.linear), sizes.map((size) => size.speedup)],
      this.frame,
    );
  }
}

/** Draw a bar from the lowest to the highest speed-up of each size. */
function drawRanges(plot: uPlot, sizes: SizeRow[], colour: string): void {
  const { ctx } = plot;
  const half = 5 * uPlot.pxRatio;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.5 * uPlot.pxRatio;
  for (const size of sizes) {
    if (size.speedup_low === null || size.speedup_high === null) continue;
    const at = plot.valToPos(size.ranks, "x", true);
    const [low, high] = [plot.valToPos(size.speedup_low, "y", true), plot.valToPos(size.speedup_high, "y", true)];
    ctx.beginPath();
    ctx.moveTo(at, low);
    ctx.lineTo(at, high);
    for (const end of [low, high]) {
      ctx.moveTo(at - half, end);
      ctx.lineTo(at + half, end);
    }
    ctx.stroke();
  }
  ctx.restore();
}

function ranks(count: number): string {
  return `${count} rank${count === 1 ? "" : "s"}`;
}

function percent(share: number): string {
  return `${(100 * share).toFixed(0)} %`;
}

/** The shares of a size's time; what no cause takes is work. */
function sharesOf(size: SizeRow): [string, number][] {
  const lost = size.shares.reduce((sum, [, share]) => sum + share, 0);
  return [["work", Math.max(0, 1 - lost)], ...size.shares];
}

function bar(size: SizeRow): HTMLElement {
  const whole = h("div", { class: "dtrain-scaling-bar", role: "img" });
  const shares = size.shares.length > 0 ? sharesOf(size) : [];
  for (const [part, share] of shares) {
    const piece = h("span", { class: `dtrain-scaling-part dtrain-scaling-${part.replace(" ", "-")}` });
    piece.style.width = `${100 * share}%`;
    piece.title = `${part}: ${percent(share)}`;
    if (share > 0.12) piece.append(percent(share));
    whole.append(piece);
  }
  const words = shares.map(([part, share]) => `${part} ${percent(share)}`).join(", ");
  whole.setAttribute("aria-label", `${ranks(size.ranks)}: ${words || "not measured"}`);
  return h("div", { class: "dtrain-scaling-row" }, h("span", {}, ranks(size.ranks)), whole);
}

function legend(sizes: SizeRow[]): HTMLElement {
  const seen = new Set(sizes.flatMap(sharesOf).flatMap(([part, share]) => (share >= 0.005 ? [part] : [])));
  const parts = PARTS.filter((part) => seen.has(part)).map((part) =>
    h("span", {}, h("i", { class: `dtrain-scaling-${part.replace(" ", "-")}` }), part),
  );
  return h("div", { class: "dtrain-scaling-legend" }, ...parts);
}

function key(): HTMLElement {
  return h(
    "div",
    { class: "dtrain-scaling-legend" },
    h("span", {}, h("i", { class: "dtrain-scaling-measured" }), "measured, with the range of its runs"),
    h("span", {}, h("i", { class: "dtrain-scaling-linear" }), "linear"),
  );
}

function table(sizes: SizeRow[]): HTMLElement {
  const range = (low: number | null, high: number | null, unit = ""): string =>
    low === null || high === null ? "" : ` (${low.toFixed(2)} to ${high.toFixed(2)}${unit})`;
  const rows = sizes.map((size) => {
    const cells =
      size.seconds === null
        ? [String(size.ranks), "not measured", "", "", ""]
        : [
            String(size.ranks),
            `${size.seconds.toFixed(2)} s${range(size.low, size.high)}`,
            `${size.speedup!.toFixed(2)}${range(size.speedup_low, size.speedup_high)}`,
            percent(size.efficiency!),
            size.batch === null ? "" : String(size.batch),
          ];
    return h("tr", {}, ...cells.map((text) => h("td", {}, text)));
  });
  const heads = ["ranks", "time", "speed-up", "of linear", "batch a rank"].map((text) => h("th", {}, text));
  return h("table", { class: "dtrain-scaling-table" }, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows));
}
