/** Which rank differs from the others: in what it computes, and in how long it takes. */

import type { Metric, Rank } from "./model";

/** Points at a series' end that say where it is now. */
const WINDOW = 20;

/** How many times the usual distance a rank must be away. */
const FAR = 6;

interface Now {
  rank: number;
  mean: number;
  noise: number;
}

/** The ranks whose values have left the others', and how, in words; none with fewer than three ranks. */
export function outliers(metric: Metric): Map<number, string> {
  const found = new Map<number, string>();
  const last = metric.last;
  if (last.size < 3) return found;
  const nows: Now[] = [];
  for (const [rank, value] of last) {
    const now = nowOf(metric, rank, value);
    if (now === null) found.set(rank, "is no number");
    else nows.push(now);
  }
  if (found.size === last.size) return new Map<number, string>();
  const middle = median(nows.map((now) => now.mean));
  const spread = 1.4826 * median(nows.map((now) => Math.abs(now.mean - middle)));
  const noise = median(nows.map((now) => now.noise));
  const limit = Math.max(FAR * spread, 3 * noise, 0.02 * Math.abs(middle), 1e-12);
  for (const { rank, mean } of nows) {
    if (Math.abs(mean - middle) > limit) found.set(rank, mean > middle ? "is above the others" : "is below the others");
  }
  // When half of them differ, nobody can say who is wrong.
  return found.size * 2 >= last.size ? new Map<number, string>() : found;
}

function nowOf(metric: Metric, rank: number, value: number): Now | null {
  const column = metric.columns.get(rank);
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

/** The rank that takes clearly longer for a step than the others, and by how much; null if none does. */
export function slowest(ranks: readonly Rank[]): { rank: number; more: number } | null {
  const known = ranks.filter((rank) => rank.pace !== null && rank.pace > 0);
  if (known.length < 2) return null;
  const worst = known.reduce((one, other) => (other.pace! > one.pace! ? other : one));
  const others = known.filter((rank) => rank !== worst).map((rank) => rank.pace!);
  const more = worst.pace! / median(others) - 1;
  return more > 0.1 ? { rank: worst.rank, more } : null;
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((one, other) => one - other);
  const half = sorted.length >> 1;
  if (sorted.length === 0) return NaN;
  return sorted.length % 2 === 1 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2;
}
