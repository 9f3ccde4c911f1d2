import { describe, expect, it } from "vitest";
import { haveEpochs, metricFamilies, metricFigures, partOf, type Chosen } from "../src/lab/runs/figures";
import { epochsOf } from "../src/lab/runs/lines";
import { drawSvg } from "../src/lab/runs/svg";
import type { Column, RunColumns } from "../src/lab/messages";

function column(name: string, steps: number[], values: number[] = steps): Column {
  return { name, rank: 0, steps, times: steps.map((step) => step / 10), values };
}

function chosen(id: number, metrics: Column[], more: Partial<RunColumns> = {}): Chosen {
  const alone = { step_time: null, epochs: [], resumes: null, first_step: 0, lineage: [] };
  return { id, label: `w/${id}`, columns: { id, metrics, resources: [], ...alone, ...more } };
}

const options = { axis: "step" as const, spread: "mean" as const, smoothing: 0 };

describe("evaluations", () => {
  it("are named after what they evaluate, in the ways of other tools", () => {
    const names = ["val_loss", "validation/loss", "eval_loss", "test.loss", "train/loss"];
    expect(names.map((name) => partOf(name)[0])).toEqual(names.map(() => "loss"));
    expect(["value", "evaluate", "val_", "latest_loss"].map((name) => partOf(name)[1])).toEqual([-1, -1, -1, -1]);
  });

  it("lie over training in one chart, with points of their own", () => {
    const run = chosen(3, [
      column("val_loss", [9]),
      column("loss", [0, 9]),
      column("lr", [0]),
      column("test_acc", [9]),
    ]);
    const families = metricFamilies([run]);
    expect(families).toEqual([
      { title: "loss", names: ["loss", "val_loss"] },
      { title: "test_acc", names: ["test_acc"] },
      { title: "lr", names: ["lr"] },
    ]);
    const lines = metricFigures([run], families, options).map((figure) => figure.lines);
    expect(lines[0]!.map(({ metric, mark }) => [metric, mark])).toEqual([
      ["loss", 0],
      ["val_loss", 1],
    ]);
    expect(lines[1]![0]!.mark).toBe(0);
  });

  it("have points also where there is no training, and `train_loss` beside `loss` has a chart of its own", () => {
    const run = chosen(1, [
      column("test_f1", [1]),
      column("val_f1", [1]),
      column("loss", [1]),
      column("train_loss", [1]),
    ]);
    const families = metricFamilies([run]);
    expect(families.map(({ names }) => names)).toEqual([["loss"], ["train_loss"], ["val_f1", "test_f1"]]);
    expect(metricFigures([run], families, options)[2]!.lines.map(({ mark }) => mark)).toEqual([1, 2]);
  });

  it("have circles in pictures", () => {
    const curve = { label: "a", colour: "#123456", dash: [], xs: [0, 1], ys: [1, 2], raw: null, bad: [] };
    const picture = {
      ...{ title: "t", axis: "step", x: [0, 1] as const, y: [0, 2] as const, log: false },
      colours: { text: "#000", grid: "#ccc", page: "#fff", alarm: "#c00" },
      ...{ formatX: String, formatY: String },
    };
    const circles = (mark: number): number =>
      drawSvg({ ...picture, curves: [{ ...curve, mark }] }).text.split("<circle").length - 1;
    expect([circles(0), circles(1)]).toEqual([0, 3]);
  });
});

describe("epochs", () => {
  it("pass evenly from where each begins", () => {
    const logged = epochsOf([column("epoch", [0, 5, 10, 15], [0, 0, 1, 1])], 0)!;
    expect([0, 5, 10, 15, 20].map(logged)).toEqual([0, 0.5, 1, 1.5, 2]);
  });

  it("count what is done where the number came at the end of each epoch, from 0", () => {
    const logged = epochsOf([column("epoch", [10, 20, 30], [0, 1, 2])], 0)!;
    expect([0, 10, 30].map(logged)).toEqual([0, 1, 3]);
    expect(epochsOf([column("epoch", [10], [0])], 0)).toBeNull();
    expect(epochsOf([], Infinity)).toBeNull();
  });

  it("are an axis for all metrics of a run, and a run without has no line over them", () => {
    const first = chosen(1, [column("loss", [0, 10], [3, 2])], { epochs: [column("epoch", [0, 10], [0, 1])] });
    const other = chosen(2, [column("loss", [0, 10])]);
    expect([haveEpochs([other]), haveEpochs([other, first])]).toEqual([false, true]);
    const [figure] = metricFigures([first, other], [{ title: "loss", names: ["loss"] }], { ...options, axis: "epoch" });
    expect(figure!.lines.map(({ xs }) => xs)).toEqual([[0, 1], []]);
  });
});

describe("a run that goes on with another", () => {
  const lineage = [1, 2].map((id) => ({ id, label: `w/${id}`, name: "", since: 0, first_step: 10 * (id - 1) }));
  const second = chosen(2, [column("loss", [0, 5, 10, 15])], { lineage });

  it("has one curve with it, and begins at its end where that has a curve, too", () => {
    const families = metricFamilies([second]);
    const steps = (runs: Chosen[]): number[][] => metricFigures(runs, families, options)[0]!.lines.map(({ xs }) => xs);
    expect(steps([second])).toEqual([[0, 5, 10, 15]]);
    expect(steps([chosen(1, [column("loss", [0, 5])]), second])).toEqual([
      [0, 5],
      [5, 10, 15],
    ]);
  });
});
