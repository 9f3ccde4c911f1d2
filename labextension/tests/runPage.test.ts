import { describe, expect, it } from "vitest";
import { diffCounts, diffLines } from "../src/lab/runs/diff";
import { histogramOf, histogramsLast, placeOf, tableOf } from "../src/lab/runs/media";
import { bestFigure, bestMetric } from "../src/lab/runs/parallel";
import { inside, scaleOf } from "../src/lab/runs/scales";
import { cut, valueText } from "../src/lab/runs/values";

describe("a value of a configuration", () => {
  it("is written as Python writes it, without what floating point adds", () => {
    expect([0.30000000000000004, 1e-7, 1e22, 3, true, null, "a", [1, { b: 2 }]].map(valueText)).toEqual([
      "0.3",
      "1e-07",
      "1e22",
      "3",
      "True",
      "None",
      "a",
      '[1,{"b":2}]',
    ]);
    expect(cut("x".repeat(10_000), 10)).toBe(`${"x".repeat(10)}…`);
  });
});

describe("a difference", () => {
  const text = ["diff --git a/m b/m", "--- a/m", "+++ b/m", "@@ -1 +1 @@", "--- x", "+++y", " z", "diff --git a/n b/n"];

  it("has lines of kinds, also where they look like the names of files", () => {
    const kinds = diffLines(text.join("\n")).map(([kind]) => kind);
    expect(kinds.slice(0, 4)).toEqual(["file", "file", "file", "place"]);
    expect(kinds.slice(5)).toEqual(["added", "same", "file"]);
    expect(diffCounts("--- a\n+++ b\n@@ -1,2 +1 @@\n-x\n-y\n+z\n")).toEqual([1, 2]);
    expect(diffCounts("")).toEqual([0, 0]);
  });
});

describe("media", () => {
  it("has the histograms of weights after what else there is", () => {
    const names = [
      ["weights/a", "histogram"],
      ["predictions", "image"],
      ["gradients/a", "histogram"],
      ["words", "text"],
    ].map(([name = "", kind = ""]) => ({ name, kind, ranks: [0], steps: [1], kept: 1, logged: 1 }));
    expect(histogramsLast(names).map(({ name }) => name)).toEqual(["predictions", "words", "weights/a", "gradients/a"]);
  });

  it("show the newest thing that is not after a step", () => {
    expect([null, 0, 29, 40, 1000].map((step) => placeOf([29, 59, 89], step))).toEqual([2, 0, 0, 0, 2]);
    expect(placeOf([], null)).toBe(0);
  });

  it("take only what is a histogram or a table", () => {
    expect(histogramOf({ edges: [0, 1, 2], counts: [3, 4] })).toMatchObject({ counts: [3, 4], mean: null });
    for (const bad of [null, 3, {}, { edges: [0], counts: [3] }, { edges: [0, "1"], counts: [3] }]) {
      expect(histogramOf(bad)).toBeNull();
    }
    expect(tableOf({ columns: ["a", 1], rows: [[1, null]] })).toEqual({ columns: ["a", "1"], rows: [[1, null]] });
    expect([undefined, [], { columns: ["a"], rows: [3] }].map(tableOf)).toEqual([null, null, null]);
  });
});

describe("parallel coordinates", () => {
  it("have axes for numbers, for orders of magnitude, and for words", () => {
    expect(scaleOf([1, 3, 2])!.place(2)).toBe(0.5);
    const rates = scaleOf([0.001, 0.1, 0.01])!;
    expect([rates.kind, rates.place(0.01)!.toFixed(3)]).toEqual(["log", "0.500"]);
    const words = scaleOf(["b10", "b9", true])!;
    expect(words.ticks.map(([, word]) => word)).toEqual(["b9", "b10", "True"]);
    expect([words.place("b9"), words.place(null), words.place("c")]).toEqual([0, null, null]);
    expect([scaleOf([1, 1]), scaleOf([]), scaleOf(Array.from({ length: 99 }, (_, one) => `n${one}`))]).toEqual([
      null,
      null,
      null,
    ]);
  });

  it("choose runs that are in all parts", () => {
    const brushes = new Map([
      [0, [0.2, 0.6] as const],
      [2, [0, 1] as const],
    ]);
    expect(
      [
        [0.2, null, 1],
        [0.7, 0, 0],
        [0.3, 0, null],
      ].map((places) => inside(places, brushes)),
    ).toEqual([true, false, false]);
  });

  it("begin with the metric by which people judge runs", () => {
    expect(bestMetric(["loss", "val_loss", "val_accuracy"])).toBe("val_accuracy");
    expect([bestMetric(["tokens/s", "loss"]), bestMetric([])]).toEqual(["loss", null]);
    expect(["val_accuracy", "eval/loss", "epoch"].map(bestFigure)).toEqual(["max", "min", "last"]);
  });
});
