import { describe, expect, it } from "vitest";
import { Column } from "../src/column";

describe("a column", () => {
  it("keeps all points in order until it is full", () => {
    const column = new Column();
    for (let part = 0; part < 10; part += 1) column.append([part * 100, part * 100 + 1], [part, part + 0.5]);
    expect(column.length).toBe(20);
    expect([...column.steps.subarray(0, 4)]).toEqual([0, 1, 100, 101]);
    expect(column.last).toBe(9.5);
    expect(column.lastStep).toBe(901);
  });

  it("keeps extremes and NaN values when it is full", () => {
    const column = new Column(1000);
    const values = Array.from({ length: 5000 }, (_, index) => Math.sin(index / 50));
    values[1234] = 7;
    values[2345] = -9;
    values[3456] = NaN;
    for (let first = 0; first < values.length; first += 500) {
      column.append(
        values.slice(first, first + 500).map((_, index) => first + index),
        values.slice(first, first + 500),
      );
      expect([column.lastStep, column.last]).toEqual([first + 499, Math.fround(values[first + 499]!)]);
    }
    const kept = [...column.values.subarray(0, column.length)];
    expect(column.length).toBeLessThanOrEqual(1500);
    expect(Math.max(...kept.filter(Number.isFinite))).toBe(7);
    expect(Math.min(...kept.filter(Number.isFinite))).toBe(-9);
    expect(column.nonFinite.map((index) => column.steps[index])).toEqual([3456]);
    expect(column.sorted).toBe(true);
  });

  it("finds the value that is nearest to a step, in order or not", () => {
    const column = new Column();
    column.append([0, 10, 20], [1, 2, 3]);
    expect(column.at(14)).toEqual({ step: 10, value: 2 });
    expect(column.at(99)).toEqual({ step: 20, value: 3 });
    column.append([5], [9]);
    expect(column.sorted).toBe(false);
    expect(column.at(6)).toEqual({ step: 5, value: 9 });
    expect(new Column().at(1)).toBeNull();
  });
});
