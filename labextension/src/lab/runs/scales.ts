/** The axes of parallel coordinates: where a value stands on one, and which values lie in a range of it. */

import { logTicks, ticks } from "./ticks";
import { valueText } from "./values";

/** Words on an axis of text; more than that are no choice but names. */
const WORDS = 24;

/** So few numbers are all beside their axis. */
const FEW = 5;

export interface Scale {
  kind: "number" | "log" | "text";
  /** From 0 at the lower end to 1; null for a value that has no place here. */
  place: (value: unknown) => number | null;
  ticks: [place: number, value: number | string][];
}

/** An axis for these values; null where they do not differ, or are too many different words. */
export function scaleOf(values: readonly unknown[]): Scale | null {
  const there = values.filter((value) => value !== null && value !== undefined);
  const numbers = there.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  return numbers.length === there.length ? ofNumbers(numbers) : ofWords(there);
}

function ofNumbers(values: readonly number[]): Scale | null {
  const low = values.reduce((least, value) => Math.min(least, value), Infinity);
  const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  if (!(low < high)) return null;
  const log = low > 0 && high / low >= 50;
  const raise = log ? Math.log10 : (value: number): number => value;
  const at = (value: number): number => (raise(value) - raise(low)) / (raise(high) - raise(low));
  const each = [...new Set(values)];
  const round = (log ? logTicks(low, high) : ticks(low, high, 5)).filter((value) => value >= low && value <= high);
  const marks = each.length <= FEW ? each : round;
  return {
    kind: log ? "log" : "number",
    place: (value) => (typeof value === "number" && Number.isFinite(value) ? at(value) : null),
    ticks: marks.map((value) => [at(value), value]),
  };
}

function ofWords(values: readonly unknown[]): Scale | null {
  const words = [...new Set(values.map(valueText))].sort((one, other) =>
    one.localeCompare(other, undefined, { numeric: true }),
  );
  if (words.length < 2 || words.length > WORDS) return null;
  const at = new Map(words.map((word, index) => [word, index / (words.length - 1)]));
  return {
    kind: "text",
    place: (value) => (value === null || value === undefined ? null : (at.get(valueText(value)) ?? null)),
    ticks: [...at].map(([word, place]) => [place, word]),
  };
}

/** A part of an axis that a person has chosen: two places, the lower first. */
export type Brush = readonly [low: number, high: number];

/** Whether a run with these places, one for each axis, is in all chosen parts. */
export function inside(places: readonly (number | null)[], brushes: ReadonlyMap<number, Brush>): boolean {
  return [...brushes].every(([axis, [low, high]]) => {
    const place = places[axis];
    return place != null && place >= low && place <= high;
  });
}
