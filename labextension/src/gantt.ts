/**
 * Draws one step of a pipeline: a lane for each rank shows when its stages computed; empty parts are the bubble.
 *
 * Kinds also differ in lightness and pattern, and larger boxes show the number of their micro-batch. A thin line at the
 * top of a lane is a send; one at its bottom is a wait for a neighbour. Only a new step or width redraws a chart.
 */

import { h, setAttribute, setText } from "./dom";
import type { Action, Pipeline } from "./model";
import { duration } from "./format";

const SVG = "http://www.w3.org/2000/svg";

/** Sizes in pixels. */
const LANE = 22;
const GAP = 4;
const AXIS = 16;
const THIN = 3;
const NARROW = 240;
const LETTER = 6.4;
const MARGIN = 18;

/** Charts with more boxes than this have no tooltips, which would slow the page down. */
const TOOLTIPS = 4000;

const NAMES: Record<string, string> = {
  F: "forward",
  B: "backward",
  I: "backward: gradient of the input",
  W: "backward: gradient of the weights",
  G: "reduce gradients",
  S: "send",
  R: "wait for a neighbour",
};

/** Stripe patterns of the two halves of a backward pass. */
const STRIPES: Record<string, string> = { I: "M-1,1 l2,-2 M0,5 l5,-5 M4,6 l2,-2", W: "M2.5,0 v5" };

export class GanttCharts {
  readonly node = h("div", { class: "dtrain-gantts", hidden: true });
  private charts: Gantt[] = [];

  update(pipelines: Pipeline[], width: number): void {
    this.node.hidden = pipelines.length === 0;
    while (this.charts.length > pipelines.length) this.charts.pop()!.node.remove();
    pipelines.forEach((pipeline, index) => {
      let chart = this.charts[index];
      if (chart === undefined) {
        chart = new Gantt();
        this.charts.push(chart);
        this.node.append(chart.node);
      }
      chart.update(pipeline, Math.max(NARROW, width - MARGIN));
    });
  }
}

let charts = 0;

class Gantt {
  readonly node: HTMLElement;
  private words = h("figcaption", {});
  private legend = h("div", { class: "dtrain-gantt-legend" });
  private svg = element("svg", { class: "dtrain-gantt-plot", role: "img" });
  /** Prefix of its patterns' ids, so that several charts on a page do not share ids. */
  private id = `dtrain-gantt-${(charts += 1)}`;
  private drawn: Pipeline | null = null;
  private width = 0;

  constructor() {
    this.node = h("figure", { class: "dtrain-gantt" }, this.words, this.svg, this.legend);
  }

  update(pipeline: Pipeline, width: number): void {
    if (this.drawn === pipeline && this.width === width) return;
    this.drawn = pipeline;
    this.width = width;
    const hidden = pipeline.ranks - pipeline.lanes.length;
    const rest = hidden > 0 ? `; ${hidden} more ${hidden === 1 ? "rank" : "ranks"} not shown` : "";
    setText(this.words, pipeline.words + rest);
    setAttribute(this.svg, "aria-label", this.words.textContent);
    this.draw(pipeline, width);
    const kinds = new Set(pipeline.lanes.flatMap((lane) => lane.actions.map((action) => action.kind)));
    this.legend.replaceChildren(
      ...Object.keys(NAMES)
        .filter((kind) => kinds.has(kind))
        .map((kind) => h("span", {}, swatch(kind, this.id), NAMES[kind]!)),
      h("span", {}, swatch("", this.id), "bubble"),
      ...(pipeline.lanes.some((lane) => lane.stages.length > 1)
        ? [h("span", {}, swatch("second", this.id), "second stage of a rank")]
        : []),
      ...(pipeline.transfers === false ? [h("span", {}, "too many sends and waits to draw")] : []),
    );
  }

  private draw(pipeline: Pipeline, width: number): void {
    const labels = pipeline.lanes.map((lane) => label(lane, pipeline));
    const left = Math.min(width / 3, 6 + LETTER * Math.max(...labels.map((one) => one.length)));
    const inner = width - left - 1;
    const height = pipeline.lanes.length * (LANE + GAP) + AXIS;
    setAttribute(this.svg, "width", String(width));
    setAttribute(this.svg, "height", String(height));
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    const parts: Element[] = [patterns(this.id)];
    const many = pipeline.lanes.reduce((sum, lane) => sum + lane.actions.length, 0) > TOOLTIPS;
    pipeline.lanes.forEach((lane, index) => {
      const top = index * (LANE + GAP);
      const name = element("text", { x: "0", y: String(top + LANE / 2 + 4), class: "dtrain-gantt-label" });
      name.textContent = labels[index]!;
      parts.push(name, box("", left, top, inner, LANE, this.id));
      const several = lane.stages.length > 1 ? lane.stages : null;
      for (const action of lane.actions) {
        parts.push(
          ...drawn(action, pipeline, { left: left + action.start * inner, top, inner, several, many, id: this.id }),
        );
      }
    });
    parts.push(...axis(pipeline.seconds, left, inner, height));
    this.svg.replaceChildren(...parts);
  }
}

interface Place {
  left: number;
  top: number;
  inner: number;
  /** The lane's stages if it has several, else null. */
  several: number[] | null;
  many: boolean;
  id: string;
}

function drawn(action: Action, pipeline: Pipeline, place: Place): Element[] {
  const { left, top } = place;
  const width = Math.max(0.6, action.length * place.inner);
  const kind = action.kind;
  const thin = kind === "S" || kind === "R";
  const shape = thin
    ? box(kind, left, kind === "S" ? top : top + LANE - THIN, Math.max(1, width), THIN, place.id)
    : box(kind, left, top + THIN, width, LANE - 2 * THIN, place.id);
  if (!place.many) {
    const title = element("title", {});
    const what = kind === "G" ? "" : `micro-batch ${action.microbatch}, `;
    const long = duration(action.length * pipeline.seconds);
    const from = duration(action.start * pipeline.seconds);
    title.textContent = `${what}stage ${action.stage}: ${NAMES[kind] ?? kind}, takes ${long}, starts at ${from}`;
    shape.append(title);
  }
  const found: Element[] = [shape];
  const number = String(action.microbatch);
  if (!thin && kind !== "G" && width > 4 + LETTER * number.length) {
    const text = element("text", {
      x: (left + width / 2).toFixed(1),
      y: String(top + LANE / 2 + 3.5),
      class: `dtrain-gantt-number dtrain-gantt-on-${kind}`,
    });
    text.textContent = number;
    found.push(text);
  }
  if (!thin && place.several !== null && place.several.indexOf(action.stage) % 2 === 1) {
    // A line along the foot of the box marks the second, fourth, … stage of a rank.
    found.push(box("second", left, top + LANE - THIN - 2, width, 2, place.id));
  }
  return found;
}

function label(lane: Pipeline["lanes"][number], pipeline: Pipeline): string {
  const own = lane.stages.length === 1 && lane.stages[0] === lane.rank && pipeline.stages === pipeline.ranks;
  const word = lane.stages.length === 1 ? "stage" : "stages";
  return own ? `rank ${lane.rank}` : `rank ${lane.rank}, ${word} ${lane.stages.join(" ")}`;
}

/** Labels for the start, the middle and the end of a step. */
function axis(seconds: number, left: number, inner: number, height: number): Element[] {
  return [0, 0.5, 1].map((share) => {
    const text = element("text", {
      x: (left + share * inner).toFixed(1),
      y: String(height - 3),
      class: "dtrain-gantt-label",
      "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle",
    });
    text.textContent = share === 0 ? "0" : duration(share * seconds);
    return text;
  });
}

function swatch(kind: string, id: string): SVGElement {
  const svg = element("svg", { width: "16", height: "10", "aria-hidden": "true" });
  if (kind === "second") svg.append(box(kind, 0, 8, 16, 2, id));
  else if (kind === "S" || kind === "R") svg.append(box(kind, 0, kind === "S" ? 1 : 6, 16, THIN, id));
  else svg.append(box(kind, 0, 0, 16, 10, id));
  return svg;
}

function box(kind: string, x: number, y: number, width: number, height: number, id: string): SVGElement {
  const part = element("rect", {
    x: x.toFixed(1),
    y: String(y),
    width: width.toFixed(1),
    height: String(height),
    class: `dtrain-gantt-${kind === "" ? "bubble" : kind}`,
  });
  if (kind in STRIPES) part.setAttribute("fill", `url(#${id}-${kind})`);
  return part;
}

/** Stripes over the colours of the two halves of a backward pass; a style sheet cannot define SVG patterns. */
function patterns(id: string): Element {
  const found = element("defs", {});
  for (const [kind, path] of Object.entries(STRIPES)) {
    const pattern = element("pattern", {
      id: `${id}-${kind}`,
      width: "5",
      height: "5",
      patternUnits: "userSpaceOnUse",
    });
    pattern.append(
      element("rect", { width: "5", height: "5", class: `dtrain-gantt-ground-${kind}` }),
      element("path", { d: path, class: "dtrain-gantt-stripe" }),
    );
    found.append(pattern);
  }
  return found;
}

function element(name: string, attributes: Record<string, string>): SVGElement {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  return found;
}
