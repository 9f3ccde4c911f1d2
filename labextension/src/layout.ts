/**
 * Reduces a metric's points to the lines of one chart: no more points than its pixels can show, and every extreme.
 *
 * A series with no more points in view than the chart has pixels is drawn point by point. Otherwise each pair of pixels
 * gets, for each rank, the lowest and the highest value in that stretch, in the order in which they were logged.
 */

import type { Column } from "./column";
import type { Metric } from "./model";

export type Line = (number | null)[];

export interface Layout {
  steps: number[];
  mean: Line;
  low: Line;
  high: Line;
  /** One line for each rank in `shown`. */
  ranks: Map<number, Line>;
}

export type Range = readonly [number, number];

/** The first and the last step of a metric; null if it has no points. */
export function extent(metric: Metric): Range | null {
  let low = Infinity;
  let high = -Infinity;
  const take = (steps: ArrayLike<number>, length: number, sorted: boolean): void => {
    if (length === 0) return;
    if (sorted) {
      low = Math.min(low, steps[0]!);
      high = Math.max(high, steps[length - 1]!);
      return;
    }
    for (let index = 0; index < length; index += 1) {
      low = Math.min(low, steps[index]!);
      high = Math.max(high, steps[index]!);
    }
  };
  for (const column of metric.columns.values()) take(column.steps, column.length, column.sorted);
  if (metric.band !== null) take(metric.band.steps, metric.band.steps.length, true);
  return low <= high ? [low, high] : null;
}

/** The lines of `metric` for a chart that is `width` pixels wide and shows the steps in `range` (null: all steps). */
export function layOut(metric: Metric, range: Range | null, width: number, shown: ReadonlySet<number>): Layout {
  const whole = extent(metric);
  if (whole === null) return { steps: [], mean: [], low: [], high: [], ranks: new Map() };
  const [low, high] = range ?? whole;
  // Each bucket has two points, so each pixel has one. More would only make noisy series slower to draw.
  const buckets = Math.max(16, Math.floor(width / 2));
  const spans = new Map<number, [number, number]>();
  let most = 0;
  for (const [rank, column] of metric.columns) {
    // One more point on each side, so that lines reach the chart's edges.
    const span: [number, number] = column.sorted
      ? [Math.max(0, column.find(low) - 1), Math.min(column.length, column.find(high + 1e-9) + 2)]
      : [0, column.length];
    spans.set(rank, span);
    most = Math.max(most, span[1] - span[0]);
  }
  if (metric.band !== null) return besideBand(metric, shown);
  if (most <= 2 * buckets) {
    if (aligned(metric, spans)) return pointByPoint(metric, spans, shown);
    // Ranks log at different steps, so a mean over the ranks present at one step would jump. Use buckets wide enough
    // for every rank to have a point.
    return pixelByPixel(metric, spans, shown, low, high, Math.max(8, Math.floor(most / 4)));
  }
  return pixelByPixel(metric, spans, shown, low, high, buckets);
}

/** Whether nearly every rank has a point at every step in view (at least 80 % of all pairs). */
function aligned(metric: Metric, spans: Map<number, [number, number]>): boolean {
  const steps = new Set<number>();
  let points = 0;
  let ranks = 0;
  for (const [rank, column] of metric.columns) {
    const [first, end] = spans.get(rank)!;
    for (let index = first; index < end; index += 1) steps.add(column.steps[index]!);
    points += end - first;
    if (end > first) ranks += 1;
  }
  return points >= 0.8 * steps.size * ranks;
}

function pointByPoint(metric: Metric, spans: Map<number, [number, number]>, shown: ReadonlySet<number>): Layout {
  const places = new Map<number, number>();
  const steps: number[] = [];
  for (const [rank, column] of metric.columns) {
    const [first, end] = spans.get(rank)!;
    for (let index = first; index < end; index += 1) {
      const step = column.steps[index]!;
      if (!places.has(step)) {
        places.set(step, 0);
        steps.push(step);
      }
    }
  }
  steps.sort((one, other) => one - other);
  steps.forEach((step, index) => places.set(step, index));
  const sums = new Float64Array(steps.length);
  const counts = new Float64Array(steps.length);
  const low: Line = steps.map(() => null);
  const high: Line = steps.map(() => null);
  const ranks = new Map<number, Line>();
  for (const [rank, column] of metric.columns) {
    const line: Line | null = shown.has(rank) ? steps.map(() => null) : null;
    const [first, end] = spans.get(rank)!;
    for (let index = first; index < end; index += 1) {
      const value = column.values[index]!;
      if (!Number.isFinite(value)) continue;
      const place = places.get(column.steps[index]!)!;
      sums[place]! += value;
      counts[place]! += 1;
      if (low[place] == null || value < low[place]) low[place] = value;
      if (high[place] == null || value > high[place]) high[place] = value;
      if (line !== null) line[place] = value;
    }
    if (line !== null) ranks.set(rank, line);
  }
  const mean = steps.map((_, index) => (counts[index]! > 0 ? sums[index]! / counts[index]! : null));
  return { steps, mean, low, high, ranks };
}

function pixelByPixel(
  metric: Metric,
  spans: Map<number, [number, number]>,
  shown: ReadonlySet<number>,
  low: number,
  high: number,
  buckets: number,
): Layout {
  const scale = high > low ? buckets / (high - low) : 0;
  const sums = new Float64Array(buckets);
  const counts = new Float64Array(buckets);
  const lows = new Float64Array(buckets).fill(Infinity);
  const highs = new Float64Array(buckets).fill(-Infinity);
  const ranks = new Map<number, Line>();
  const scratch = new Scratch(buckets);
  for (const [rank, column] of metric.columns) {
    const [first, end] = spans.get(rank)!;
    scratch.take(column, first, end, low, scale);
    for (let bucket = 0; bucket < buckets; bucket += 1) {
      const count = scratch.counts[bucket]!;
      if (count === 0) continue;
      sums[bucket]! += scratch.sums[bucket]!;
      counts[bucket]! += count;
      if (scratch.lows[bucket]! < lows[bucket]!) lows[bucket] = scratch.lows[bucket]!;
      if (scratch.highs[bucket]! > highs[bucket]!) highs[bucket] = scratch.highs[bucket]!;
    }
    if (shown.has(rank)) ranks.set(rank, scratch.line());
  }
  const steps: number[] = [];
  const mean: Line = [];
  const lowLine: Line = [];
  const highLine: Line = [];
  const kept: number[] = [];
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    if (!counts[bucket]) continue;
    kept.push(bucket);
    const middle = sums[bucket]! / counts[bucket]!;
    const left = scale > 0 ? low + bucket / scale : low;
    const width = scale > 0 ? 1 / scale : 0;
    steps.push(left + 0.25 * width, left + 0.75 * width);
    mean.push(middle, middle);
    lowLine.push(lows[bucket]!, lows[bucket]!);
    highLine.push(highs[bucket]!, highs[bucket]!);
  }
  for (const [rank, line] of ranks) {
    ranks.set(
      rank,
      kept.flatMap((bucket) => [line[2 * bucket]!, line[2 * bucket + 1]!]),
    );
  }
  return { steps, mean, low: lowLine, high: highLine, ranks };
}

/** The buckets of one rank: reused for the next rank, so that a draw allocates them once. */
class Scratch {
  sums: Float64Array;
  counts: Float64Array;
  lows: Float64Array;
  highs: Float64Array;
  private lowAt: Float64Array;
  private highAt: Float64Array;

  constructor(private buckets: number) {
    this.sums = new Float64Array(buckets);
    this.counts = new Float64Array(buckets);
    this.lows = new Float64Array(buckets);
    this.highs = new Float64Array(buckets);
    this.lowAt = new Float64Array(buckets);
    this.highAt = new Float64Array(buckets);
  }

  take(column: Column, first: number, end: number, low: number, scale: number): void {
    const { sums, counts, lows, highs, lowAt, highAt, buckets } = this;
    const { steps, values } = column;
    sums.fill(0);
    counts.fill(0);
    lows.fill(Infinity);
    highs.fill(-Infinity);
    for (let index = first; index < end; index += 1) {
      const value = values[index]!;
      let bucket = Math.floor((steps[index]! - low) * scale);
      if (bucket < 0 || bucket > buckets || value - value !== 0) continue;
      if (bucket === buckets) bucket -= 1;
      sums[bucket]! += value;
      counts[bucket]! += 1;
      if (value < lows[bucket]!) {
        lows[bucket] = value;
        lowAt[bucket] = index;
      }
      if (value > highs[bucket]!) {
        highs[bucket] = value;
        highAt[bucket] = index;
      }
    }
  }

  line(): Line {
    const found: Line = new Array<number | null>(2 * this.buckets).fill(null);
    for (let bucket = 0; bucket < this.buckets; bucket += 1) {
      if (!this.counts[bucket]) continue;
      const falls = this.lowAt[bucket]! > this.highAt[bucket]!;
      found[2 * bucket] = falls ? this.highs[bucket]! : this.lows[bucket]!;
      found[2 * bucket + 1] = falls ? this.lows[bucket]! : this.highs[bucket]!;
    }
    return found;
  }
}

/** The lines of a saved run of many ranks: its band, and the few ranks whose points were saved. */
function besideBand(metric: Metric, shown: ReadonlySet<number>): Layout {
  const band = metric.band!;
  const all = new Set<number>(band.steps);
  for (const [rank, column] of metric.columns) {
    if (shown.has(rank)) for (let index = 0; index < column.length; index += 1) all.add(column.steps[index]!);
  }
  const steps = [...all].sort((one, other) => one - other);
  const places = new Map(steps.map((step, index) => [step, index]));
  const spread = (at: ArrayLike<number>, values: ArrayLike<number>, length: number): Line => {
    const line: Line = steps.map(() => null);
    for (let index = 0; index < length; index += 1) {
      if (Number.isFinite(values[index]!)) line[places.get(at[index]!)!] = values[index]!;
    }
    return line;
  };
  const ranks = new Map<number, Line>();
  for (const [rank, column] of metric.columns) {
    if (shown.has(rank)) ranks.set(rank, spread(column.steps, column.values, column.length));
  }
  const length = band.steps.length;
  return {
    steps,
    mean: spread(band.steps, band.mean, length),
    low: spread(band.steps, band.low, length),
    high: spread(band.steps, band.high, length),
    ranks,
  };
}

/** Exponentially smooths `line`, correcting for the start; `weight` is from 0 (no smoothing) to below 1. */
export function smoothed(line: Line, weight: number): Line {
  if (weight <= 0) return line;
  let sum = 0;
  let total = 0;
  return line.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}
