/**
 * Finds ranks whose values differ from the others'.
 *
 * The server finds them too, by the same rule (jupyter_dtrain/server/attention.py), and a saved notebook has no server:
 * tests/server/apart.json has cases that both must judge alike.
 */

import type { Column } from "./column";
import { type Metric, WINDOW } from "./model";

/** A rank is an outlier if it is this many times the usual spread away from the median. */
const FAR = 6;

interface Now {
  rank: number;
  mean: number;
  noise: number;
}

/**
 * The ranks whose values differ from the others', and how, in words; empty if there are fewer than three ranks.
 *
 * A rank that is far behind, such as one that has died, has no current value to compare.
 */
export function outliers(metric: Metric): Map<number, string> {
  const found = new Map<number, string>();
  const last = metric.last;
  if (last.size < 3) return found;
  const nows: Now[] = [];
  // In a saved run of many ranks only some have points, thinned: a mean of theirs compares to no last value.
  const some = metric.columns.size < last.size;
  const since = some ? -Infinity : metric.since;
  for (const [rank, value] of last) {
    if ((metric.columns.get(rank)?.lastStep ?? Infinity) < since) continue;
    const now = nowOf(some ? undefined : metric.columns.get(rank), rank, value);
    if (now === null) found.set(rank, "is NaN or infinite");
    else nows.push(now);
  }
  if (nows.length === 0) return new Map<number, string>();
  const middle = median(nows.map((now) => now.mean));
  const spread = 1.4826 * median(nows.map((now) => Math.abs(now.mean - middle)));
  const noise = median(nows.map((now) => now.noise));
  const limit = Math.max(FAR * spread, 3 * noise, 0.02 * Math.abs(middle), 1e-12);
  for (const { rank, mean } of nows) {
    if (Math.abs(mean - middle) > limit) found.set(rank, mean > middle ? "is above the others" : "is below the others");
  }
  // If half of the ranks or more differ, the data cannot say which of them are wrong.
  return found.size * 2 >= last.size ? new Map<number, string>() : found;
}

function nowOf(column: Column | undefined, rank: number, value: number): Now | null {
  if (!Number.isFinite(value)) return null;
  if (column === undefined) return { rank, mean: value, noise: 0 };
  let sum = 0;
  let squares = 0;
  let count = 0;
  for (let index = Math.max(0, column.length - WINDOW); index < column.length; index += 1) {
    const one = column.values[index]!;
    if (!Number.isFinite(one)) continue;
    sum += one;
    squares += one * one;
    count += 1;
  }
  const mean = sum / count;
  return { rank, mean, noise: Math.sqrt(Math.max(0, squares / count - mean * mean)) };
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((one, other) => one - other);
  const half = sorted.length >> 1;
  if (sorted.length === 0) return NaN;
  return sorted.length % 2 === 1 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2;
}
