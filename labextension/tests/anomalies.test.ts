import { describe, expect, it } from "vitest";
import { outliers } from "../src/anomalies";
import { Metric } from "../src/model";

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
  it("is named", () => {
    expect([...outliers(metric(1, 1.01, 5, 0.99))]).toEqual([[2, "is above the others"]]);
    expect([...outliers(metric(1, 1.01, 1, 0.99, -2))]).toEqual([[4, "is below the others"]]);
  });

  it("is not named if it has ended long before the others", () => {
    const found = metric(1, 1, 1, 9);
    for (const rank of [0, 1, 2]) {
      const steps = Array.from({ length: 20 }, (_, more) => 40 + more);
      found.column(rank, 1000).append(
        steps,
        steps.map(() => 0.1),
      );
    }
    expect(outliers(found).size).toBe(0);
  });

  it("is named when its value is NaN", () => {
    expect([...outliers(metric(1, NaN, 1, 1))]).toEqual([[1, "is NaN or infinite"]]);
  });

  it("is not reported for mere noise, or with fewer than three ranks", () => {
    expect(outliers(metric(1, 1.002, 0.999, 1.001)).size).toBe(0);
    expect(outliers(metric(1, 5)).size).toBe(0);
    expect(outliers(metric(NaN, NaN, NaN)).size).toBe(0);
    expect(outliers(metric(1, 2, 3, 4, 5, 6)).size).toBe(0);
  });
});

describe("a saved run of many ranks", () => {
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
