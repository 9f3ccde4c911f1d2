import { describe, expect, it } from "vitest";
import { outliers } from "../src/anomalies";
import { Metric } from "../src/model";
import cases from "../../tests/server/apart.json";

function metric(...last: number[]): Metric {
  const found = new Metric("loss");
  last.forEach((value, rank) => {
    for (let step = 0; step < 40; step += 1) {
      found.column(rank, 1000).append([step], [value + 0.01 * Math.sin(step * (rank + 3))]);
    }
  });
  return found;
}

describe("a rank that differs from the others", () => {
  // The server judges the same cases: tests/server/test_attention.py.
  it.each(cases)("is found as the server finds it: $name", ({ values, first, apart }) => {
    const found = new Metric("loss");
    values.forEach((points, rank) => {
      const start = first?.[rank] ?? 0;
      const steps = points.map((_, index) => start + index);
      found.column(rank, 1000).append(
        steps,
        points.map((value) => value ?? NaN),
      );
    });
    const words = Object.entries(apart).map(([rank, where]) => [Number(rank), `is ${where} the others`]);
    expect([...outliers(found)]).toEqual(words);
  });

  it("is named when its value is NaN", () => {
    expect([...outliers(metric(1, NaN, 1, 1))]).toEqual([[1, "is NaN or infinite"]]);
    expect(outliers(metric(NaN, NaN, NaN)).size).toBe(0);
  });
});

describe("the value of a metric", () => {
  const ended = (...columns: [step: number, value: number][]): Metric => {
    const found = new Metric("loss");
    columns.forEach(([step, value], rank) => {
      found.column(rank, 1000).append([step - 1, step], [9, value]);
    });
    return found;
  };

  it("is that of the ranks at the newest step, as in lists of runs", () => {
    expect(ended([143, 1], [144, 2], [143, 1], [144, 4]).value(true)).toBe(3);
    expect(ended([60, 7], [60, NaN]).value(true)).toBeNaN();
    expect(new Metric("loss").value(true)).toBeNull();
  });

  it("is that of all ranks about as far while points are still on their way, but of no lost one", () => {
    expect(ended([143, 1], [144, 2], [143, 1], [144, 4]).value(false)).toBe(2);
    const lost = metric(1, 1, 1, 9);
    const on = Array.from({ length: 60 }, (_, more) => 40 + more);
    for (const rank of [0, 1, 2]) {
      lost.column(rank, 1000).append(
        on,
        on.map(() => 0.5),
      );
    }
    expect(lost.value(false)).toBe(0.5);
  });
});

describe("a saved run of many ranks", () => {
  it("has the value that Python saved with it", () => {
    const found = metric(1, 2);
    const none = new Float32Array();
    const band = { steps: none, mean: none, low: none, high: none };
    const last = new Map([1, 2, 3].map((value, rank) => [rank, value]));
    found.setBand(band, { last, mean: 3, bad: [] });
    expect(found.value(true)).toBe(3);
    found.setBand(band, { last, bad: [] });
    expect(found.value(true)).toBe(2);
  });

  it("has no outlier only because a few ranks have points", () => {
    const found = metric(0.1, 0.1);
    found.column(0, 1000).append([40], [0.1]);
    const none = new Float32Array();
    const last = new Map(Array.from({ length: 100 }, (_, rank) => [rank, rank === 50 ? 9 : 0.1]));
    // Rank 0 fell from 8 to 0.1 in the points that were saved.
    found.columns.get(0)!.values.fill(8, 25, 40);
    found.setBand({ steps: none, mean: none, low: none, high: none }, { last, bad: [] });
    expect([...outliers(found).keys()]).toEqual([50]);
  });
});
