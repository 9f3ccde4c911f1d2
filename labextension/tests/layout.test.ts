import { describe, expect, it } from "vitest";
import { layOut, extent, smoothed } from "../src/layout";
import { Metric } from "../src/model";

function metric(series: Record<number, [number[], number[]]>): Metric {
  const found = new Metric("loss");
  for (const [rank, [steps, values]] of Object.entries(series)) {
    found.column(Number(rank), 1 << 20).append(steps, values);
  }
  return found;
}

const all = new Set([0, 1, 2]);

describe("few points", () => {
  it("are drawn one by one, with their mean and spread", () => {
    const view = layOut(
      metric({
        0: [
          [0, 1, 2],
          [1, 2, 3],
        ],
        1: [
          [0, 1, 2],
          [3, 4, 5],
        ],
      }),
      null,
      500,
      all,
    );
    expect(view.steps).toEqual([0, 1, 2]);
    expect(view.mean).toEqual([2, 3, 4]);
    expect(view.low).toEqual([1, 2, 3]);
    expect(view.high).toEqual([3, 4, 5]);
    expect(view.ranks.get(1)).toEqual([3, 4, 5]);
  });

  it("leave a gap where a value is NaN or infinite", () => {
    const view = layOut(
      metric({
        0: [
          [0, 1, 2],
          [1, NaN, 3],
        ],
        1: [
          [0, 1, 2],
          [3, Infinity, 5],
        ],
      }),
      null,
      500,
      all,
    );
    expect(view.mean).toEqual([2, null, 4]);
    expect(view.ranks.get(0)).toEqual([1, null, 3]);
  });

  it("give a smooth mean if ranks have points at different steps", () => {
    const steps = (offset: number): number[] => Array.from({ length: 100 }, (_, index) => 2 * index + offset);
    const view = layOut(
      metric({ 0: [steps(0), steps(0).map(() => 1)], 1: [steps(1), steps(1).map(() => 3)] }),
      null,
      1000,
      all,
    );
    expect(new Set(view.mean)).toEqual(new Set([2]));
  });
});

describe("many points", () => {
  const count = 100_000;
  const steps = Array.from({ length: count }, (_, index) => index);
  const values = steps.map((step) => (step === 54_321 ? 100 : step === 12_345 ? -100 : (step % 7) / 7));

  it("are reduced to a few per pixel, and no extreme is lost", () => {
    const view = layOut(metric({ 0: [steps, values], 1: [steps, values] }), null, 800, all);
    expect(view.steps.length).toBeLessThanOrEqual(1600);
    expect(Math.max(...view.high.map(Number))).toBe(100);
    expect(Math.min(...view.low.map(Number))).toBe(-100);
    expect(Math.max(...view.ranks.get(0)!.map(Number))).toBe(100);
    expect(view.mean[view.mean.length - 1]).toBeCloseTo(3 / 7, 1);
    expect([...view.steps].sort((one, other) => one - other)).toEqual(view.steps);
  });

  it("are drawn one by one again in a part that is small enough", () => {
    const view = layOut(metric({ 0: [steps, values] }), [54_300, 54_340], 800, all);
    expect(view.steps).toContain(54_321);
    expect(view.mean[view.steps.indexOf(54_321)]).toBe(100);
    expect(view.steps.length).toBeLessThan(60);
  });
});

describe("odd series", () => {
  it("without points, or with one, are laid out", () => {
    expect(layOut(metric({}), null, 100, all).steps).toEqual([]);
    expect(extent(metric({}))).toBeNull();
    expect(layOut(metric({ 0: [[5], [1]] }), null, 100, all).mean).toEqual([1]);
  });

  it("whose steps start over are drawn completely", () => {
    const view = layOut(
      metric({
        0: [
          [0, 1, 2, 0, 1],
          [1, 2, 3, 4, 5],
        ],
      }),
      null,
      100,
      all,
    );
    expect(view.steps).toEqual([0, 1, 2]);
    expect(view.mean).toEqual([2.5, 3.5, 3]);
  });

  it("show their band if only that is known", () => {
    const found = new Metric("loss");
    const floats = (...numbers: number[]): Float32Array => Float32Array.from(numbers);
    found.setBand(
      { steps: floats(0, 1), mean: floats(2, 3), low: floats(1, 1), high: floats(4, 5) },
      {
        last: new Map([
          [0, 3],
          [1, 3],
        ]),
        bad: [],
      },
    );
    const view = layOut(found, null, 100, all);
    expect(view.mean).toEqual([2, 3]);
    expect(view.high).toEqual([4, 5]);
  });
});

describe("smoothing", () => {
  it("starts at the first value and keeps gaps", () => {
    expect(smoothed([4, null, 4, 4], 0.9)).toEqual([4, null, expect.closeTo(4), expect.closeTo(4)]);
    expect(smoothed([0, 10], 0.5)[1]).toBeCloseTo(20 / 3);
    expect(smoothed([1, 5], 0)).toEqual([1, 5]);
  });
});
