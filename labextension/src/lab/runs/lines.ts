/**
 * From a run's columns to the lines of a chart: over steps, time or epochs, each rank or the mean over ranks, smoothed.
 *
 * Points that are NaN or infinite belong to no line; charts mark where they were.
 */

import { smoothed } from "../../layout";
import type { Column } from "../messages";

export type Axis = "step" | "time" | "epoch";

/** The epoch of a step, with what part of it was done by then. */
export type Epochs = (step: number) => number;

/** Finite points by increasing `xs`. */
export interface Points {
  xs: number[];
  ys: number[];
  /** Where a value was NaN or infinite. */
  bad: number[];
}

export interface Line extends Points {
  /** Its run, by the id for requests. */
  run: number;
  /** Null for the mean over ranks. */
  rank: number | null;
  label: string;
  /** Selects its colour and its dashes. */
  style: Style;
  metric: string;
  /** 0 for training; evaluations that lie over it in one chart have points, of another shape for each kind. */
  mark: number;
  /** The values before smoothing; null if they are the same. */
  raw: number[] | null;
}

/** Numbers that the theme turns into a colour and a pattern of dashes. */
export interface Style {
  colour: number;
  dash: number;
}

/**
 * The epochs of a run that has logged them as a metric; null if it has not, or only one.
 *
 * The first step that has each value is where that epoch begins, and epochs pass evenly in between. A run that logs the
 * number at the end of each epoch, counted from 0, has its first steps in front of 0: there the count is of what is done.
 */
export function epochsOf(columns: readonly Column[], first: number): Epochs | null {
  const steps: number[] = [];
  const values: number[] = [];
  const [column] = columns;
  column?.steps.forEach((step, index) => {
    const value = column.values[index] ?? null;
    if (step === null || value === null) return;
    if (steps.length > 0 && (step <= steps.at(-1)! || value <= values.at(-1)!)) return;
    steps.push(step);
    values.push(value);
  });
  if (steps.length < 2) return null;
  const at = (step: number): number => {
    let right = 1;
    while (right < steps.length - 1 && steps[right]! < step) right += 1;
    const [a, b] = [steps[right - 1]!, steps[right]!];
    return values[right - 1]! + ((step - a) / (b - a)) * (values[right]! - values[right - 1]!);
  };
  const shift = values[0]! >= 0 ? Math.ceil(Math.max(0, -at(Math.min(first, steps[0]!)))) : 0;
  return (step) => at(step) + shift;
}

/** The most points of a mean: it has those of all its ranks. */
const MOST = 4000;

/** `epochs`: of the column's run; without them it has no points over epochs. */
export function pointsOf(column: Column, axis: Axis, epochs: Epochs | null = null): Points {
  const at: (number | null)[] =
    axis === "time"
      ? column.times
      : axis === "step"
        ? column.steps
        : column.steps.map((step) => (step === null || epochs === null ? null : epochs(step)));
  const found: Points = { xs: [], ys: [], bad: [] };
  at.forEach((x, index) => {
    const y = column.values[index] ?? null;
    if (x === null) return;
    if (y === null) {
      found.bad.push(x);
      return;
    }
    found.xs.push(x);
    found.ys.push(y);
  });
  if (found.xs.every((x, index) => index === 0 || found.xs[index - 1]! <= x)) return found;
  // The run went back to an earlier step: its chart has the points in order of steps, as other tools draw them.
  const order = found.xs.map((_, index) => index).sort((one, other) => found.xs[one]! - found.xs[other]!);
  return { xs: order.map((index) => found.xs[index]!), ys: order.map((index) => found.ys[index]!), bad: found.bad };
}

/**
 * The mean over ranks. Where one rank has a point and another does not, the other counts with the value on its line;
 * a rank counts from its first to its last point only.
 */
export function meanOf(parts: Points[]): Points {
  const [first] = parts;
  if (parts.length === 1 && first !== undefined) return first;
  const xs = union(parts.map((part) => part.xs));
  const sums = new Float64Array(xs.length);
  const counts = new Float64Array(xs.length);
  for (const part of parts) {
    let next = 0;
    const last = part.xs.length - 1;
    for (let index = 0; index < xs.length; index += 1) {
      const x = xs[index]!;
      while (next <= last && part.xs[next]! < x) next += 1;
      if (next > last) break;
      const right = part.xs[next]!;
      if (right > x && next === 0) continue;
      const share = right === x ? 1 : (x - part.xs[next - 1]!) / (right - part.xs[next - 1]!);
      sums[index]! += share === 1 ? part.ys[next]! : part.ys[next - 1]! * (1 - share) + part.ys[next]! * share;
      counts[index]! += 1;
    }
  }
  const ys = xs.map((_, index) => sums[index]! / counts[index]!);
  return thinned({ xs, ys, bad: union(parts.map((part) => part.bad)) }, MOST);
}

/** At most `most` of the points: the lowest and the highest of each stretch, and both ends. */
export function thinned(points: Points, most: number): Points {
  const { xs, ys, bad } = points;
  const size = xs.length;
  if (size <= most) return points;
  const stretch = Math.ceil((2 * size) / (most - 2));
  const kept = new Set([0, size - 1]);
  for (let first = 0; first < size; first += stretch) {
    let low = first;
    let high = first;
    for (let index = first; index < Math.min(size, first + stretch); index += 1) {
      if (ys[index]! < ys[low]!) low = index;
      if (ys[index]! > ys[high]!) high = index;
    }
    kept.add(low).add(high);
  }
  const order = [...kept].sort((one, other) => one - other);
  return { xs: order.map((index) => xs[index]!), ys: order.map((index) => ys[index]!), bad };
}

/** `points` as a line, smoothed with a weight from 0 (not at all) to below 1. */
export function lineOf(points: Points, weight: number, more: Omit<Line, keyof Points | "raw">): Line {
  const soft = weight > 0 ? (smoothed(points.ys, weight) as number[]) : points.ys;
  return { ...points, ...more, ys: soft, raw: weight > 0 ? points.ys : null };
}

/** All of `lists` in increasing order, each number once. */
export function union(lists: number[][]): number[] {
  const [first] = lists;
  if (first !== undefined && lists.every((list) => same(list, first))) return [...new Set(first)];
  return [...new Set(lists.flat())].sort((one, other) => one - other);
}

function same(one: number[], other: number[]): boolean {
  return one === other || (one.length === other.length && one.every((value, index) => value === other[index]));
}

/** Rows as uPlot wants them: all places in order, then each line's values there, null where it has none. */
export function aligned(lines: { xs: number[]; ys: number[] }[]): (number | null)[][] {
  const xs = union(lines.map((line) => line.xs));
  const places = new Map(xs.map((x, index) => [x, index]));
  const rows = lines.map((line) => {
    const row = new Array<number | null>(xs.length).fill(null);
    line.xs.forEach((x, index) => {
      row[places.get(x)!] = line.ys[index]!;
    });
    return row;
  });
  return [xs, ...rows];
}

/** The index of the point of `xs` that is nearest to `x`; null if `x` is further beyond the ends than `slack`. */
export function nearest(xs: number[], x: number, slack: number): number | null {
  if (xs.length === 0 || x < xs[0]! - slack || x > xs[xs.length - 1]! + slack) return null;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle]! <= x) low = middle;
    else high = middle;
  }
  return x - xs[low]! <= xs[high]! - x ? low : high;
}

/** The first and the last place of any line; null without points. */
export function extentOf(lines: readonly Line[]): [number, number] | null {
  const ends = lines.flatMap(({ xs, bad }) => [
    ...xs.slice(0, 1),
    ...xs.slice(-1),
    ...bad.slice(0, 1),
    ...bad.slice(-1),
  ]);
  return ends.length === 0 ? null : [Math.min(...ends), Math.max(...ends)];
}
