import { describe, expect, it } from "vitest";
import type { PipelinePart, RunDocument } from "../src/runDocument";
import { GanttCharts } from "../src/gantt";
import { RunModel } from "../src/model";
import { Receiver } from "../src/receiver";

type Row = [kind: string, stage: number, microbatch: number, start: number, length: number];

/** Packs actions as Python does; times are fractions of the step. */
function lane(rank: number, stages: number[], ...rows: Row[]): [number, number[], string] {
  const numbers = rows.flatMap(([kind, stage, microbatch, start, length]) => [
    kind.charCodeAt(0),
    stage,
    microbatch,
    Math.round(start * 65_535),
    Math.round(length * 65_535),
  ]);
  return [rank, stages, btoa(numbers.map((one) => String.fromCharCode(one & 255, one >> 8)).join(""))];
}

function pipeline(parts: Partial<PipelinePart> = {}): PipelinePart {
  return {
    schedule: "1F1B",
    step: 12,
    ranks: 2,
    stages: 2,
    microbatches: 1,
    seconds: 0.01,
    words: "1F1B, 2 ranks × 1 micro-batches: bubble 33 %",
    lanes: [
      lane(0, [0], ["F", 0, 0, 0, 0.25], ["R", 0, 0, 0.25, 0.5], ["B", 0, 0, 0.75, 0.25]),
      lane(1, [1], ["F", 1, 0, 0.25, 0.25], ["B", 1, 0, 0.5, 0.25], ["S", 1, 0, 0.75, 0.01]),
    ],
    ...parts,
  };
}

function run(pipelines?: PipelinePart[]): RunDocument {
  const whole: RunDocument = {
    version: 1,
    run: 7,
    size: 2,
    outcome: "running",
    elapsed: 75,
    nodes: ["host"],
    ranks: [],
    words: {},
    bars: [],
    metrics: [],
  };
  return pipelines === undefined ? whole : { ...whole, pipelines };
}

function drawn(...pipelines: PipelinePart[]): GanttCharts {
  const model = new RunModel();
  model.load(run(pipelines));
  const charts = new GanttCharts();
  charts.update(model.pipelines, 518);
  return charts;
}

function boxes(charts: GanttCharts, kind: string): [number, number][] {
  return [...charts.node.querySelectorAll(`.dtrain-gantt-plot rect.dtrain-gantt-${kind}`)].map((box) => [
    Number(box.getAttribute("x")),
    Number(box.getAttribute("width")),
  ]);
}

describe("a step of a pipeline", () => {
  it("has a lane for each rank, with a box where it computes", () => {
    const charts = drawn(pipeline());
    expect(charts.node.querySelector("figcaption")!.textContent).toBe("1F1B, 2 ranks × 1 micro-batches: bubble 33 %");
    const [[left, inner]] = boxes(charts, "bubble") as [[number, number]];
    const expected = (start: number, length: number): [number, number] => [left + start * inner, length * inner];
    const near = ([x, width]: [number, number]): unknown => [expect.closeTo(x, 0), expect.closeTo(width, 0)];
    expect(boxes(charts, "F")).toEqual([expected(0, 0.25), expected(0.25, 0.25)].map(near));
    expect(boxes(charts, "B")).toEqual([expected(0.75, 0.25), expected(0.5, 0.25)].map(near));
    expect(boxes(charts, "R")).toEqual([near(expected(0.25, 0.5))]);
    const labels = [...charts.node.querySelectorAll(".dtrain-gantt-label")].map((text) => text.textContent);
    expect(labels).toEqual(["rank 0", "rank 1", "0", "5.00 ms", "10.0 ms"]);
  });

  it("has a tooltip on each box, and a legend of only the kinds that occur", () => {
    const charts = drawn(pipeline());
    const titles = [...charts.node.querySelectorAll("title")].map((title) => title.textContent);
    expect(titles).toContain("micro-batch 0, stage 1: backward, takes 2.50 ms, starts at 5.00 ms");
    expect(titles).toContain("micro-batch 0, stage 0: wait for a neighbour, takes 5.00 ms, starts at 2.50 ms");
    const legend = [...charts.node.querySelectorAll(".dtrain-gantt-legend > span")].map((span) => span.textContent);
    expect(legend).toEqual(["forward", "backward", "send", "wait for a neighbour", "bubble"]);
  });

  it("names the stages of ranks that have several, and marks the second", () => {
    const lanes = [lane(0, [0, 3], ["F", 0, 0, 0, 0.5], ["I", 3, 0, 0.5, 0.5])];
    const charts = drawn(pipeline({ stages: 4, lanes, transfers: false }));
    expect(charts.node.querySelector(".dtrain-gantt-label")!.textContent).toBe("rank 0, stages 0 3");
    expect(boxes(charts, "second")).toHaveLength(1);
    expect(charts.node.querySelector("figcaption")!.textContent).toContain("; 1 more rank not shown");
    expect(charts.node.querySelector(".dtrain-gantt-legend")!.textContent).toContain(
      "second stage of a ranktoo many sends and waits to draw",
    );
    // Its stripes are those of this chart.
    const fill = charts.node.querySelector("rect.dtrain-gantt-I")!.getAttribute("fill")!;
    expect(charts.node.querySelector(`pattern[id="${fill.slice(5, -1)}"]`)).not.toBeNull();
  });

  it("is redrawn only for a new step or width, and disappears when there is no pipeline", () => {
    const model = new RunModel();
    model.load(run([pipeline()]));
    const charts = new GanttCharts();
    charts.update(model.pipelines, 518);
    const before = charts.node.querySelector("rect");
    charts.update(model.pipelines, 518);
    expect(charts.node.querySelector("rect")).toBe(before);
    charts.update(model.pipelines, 618);
    expect(charts.node.querySelector("rect")).not.toBe(before);
    charts.update([], 618);
    expect(charts.node.hidden).toBe(true);
    expect(charts.node.childElementCount).toBe(0);
  });

  it("inserts a rank's words into the page as text", () => {
    const charts = drawn(pipeline({ words: "<img src=x>" }));
    expect(charts.node.querySelector("img")).toBeNull();
    expect(charts.node.textContent).toContain("<img src=x>");
  });
});

describe("news of pipelines", () => {
  it("replace the known pipelines, even if points were missed", () => {
    const receiver = new Receiver();
    receiver.begin(run([pipeline()]));
    expect(receiver.model.pipelines.map((one) => one.step)).toEqual([12]);
    receiver.receive({ seq: 5, status: run(), pipelines: [pipeline({ step: 13 })] }, []);
    expect(receiver.model.pipelines.map((one) => one.step)).toEqual([13]);
    receiver.receive({ seq: 5, status: run() }, []);
    expect(receiver.model.pipelines.map((one) => one.step)).toEqual([13]);
    receiver.begin({ ...run([pipeline({ step: 14 })]), outcome: "ok", seq: 9 });
    expect(receiver.model.pipelines.map((one) => one.step)).toEqual([14]);
  });

  it("are absent from documents of earlier versions", () => {
    const model = new RunModel();
    model.load(run());
    expect(model.pipelines).toEqual([]);
  });
});
