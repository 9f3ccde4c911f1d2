/** A run as the front end knows it: filled from a document, kept current by messages, read by the components. */

import { Column } from "./column";
import type { Outcome, PipelinePart, RankState, RunDocument, Status } from "./document";
import { decodeFloats, decodeShorts, decodeSteps } from "./document";

/** Points that a run may hold in the page, over all series. */
const ROOM = 4_000_000;

/** A step of a pipeline, as its actions count time. */
const WHOLE = 65_535;

export interface Rank {
  rank: number;
  node: number;
  state: RankState;
  step: number | null;
  /** Bytes. */
  memory: number | null;
  /** Per cent of one core. */
  cpu: number | null;
  gpu: { utilisation: number | null; used: number; total: number } | null;
  /** Seconds that a step takes. */
  pace: number | null;
  words: string;
}

export interface BarOfRank {
  rank: number;
  done: number;
  total: number | null;
  rate: number | null;
  ended: boolean;
}

/** What a stage of a pipeline did with a micro-batch; `start` and `length` are shares of the step. */
export interface Action {
  kind: string;
  stage: number;
  microbatch: number;
  start: number;
  length: number;
}

/** A step of a pipeline. */
export interface Pipeline extends Omit<PipelinePart, "lanes"> {
  lanes: { rank: number; stages: number[]; actions: Action[] }[];
}

export interface Bar {
  number: number;
  name: string;
  ranks: BarOfRank[];
}

/** A value that is no number, where it happened. */
export interface Strange {
  rank: number;
  step: number;
  kind: string;
}

export interface Band {
  steps: Float32Array;
  mean: Float32Array;
  low: Float32Array;
  high: Float32Array;
}

export class Metric {
  columns = new Map<number, Column>();
  /** Over all ranks, where their points were thinned or left out. */
  band: Band | null = null;
  private lasts: Map<number, number> | null = null;
  private bad: Strange[] = [];

  constructor(readonly name: string) {}

  column(rank: number, room: number): Column {
    let found = this.columns.get(rank);
    if (found === undefined) {
      found = new Column(room);
      this.columns.set(rank, found);
    }
    return found;
  }

  /** `rest`: the newest values and the values that are no numbers, where not every rank's points are here. */
  setBand(band: Band, rest: { last: Map<number, number>; bad: Strange[] } | null): void {
    this.band = band;
    this.lasts = rest === null ? null : rest.last;
    this.bad = rest === null ? [] : rest.bad;
  }

  /** The newest value of each rank. */
  get last(): Map<number, number> {
    if (this.lasts !== null) return this.lasts;
    const found = new Map<number, number>();
    for (const [rank, column] of this.columns) if (column.length > 0) found.set(rank, column.last);
    return found;
  }

  /** Values that are no numbers, by step. */
  get strange(): Strange[] {
    if (this.lasts !== null) return this.bad;
    const found: Strange[] = [];
    for (const [rank, column] of this.columns) {
      for (const index of column.strange) {
        found.push({ rank, step: column.steps[index]!, kind: kindOf(column.values[index]!) });
      }
    }
    return found.sort((one, other) => one.step - other.step);
  }
}

/** Whether a metric is shown before the others: not the learning rate and the like. */
export function isMain(name: string): boolean {
  return !(name.endsWith("/s") || ["lr", "grad_norm"].includes(name.split("/")[0]!));
}

export class RunModel {
  run = 0;
  size = 0;
  outcome: Outcome = "running";
  elapsed = 0;
  nodes: string[] = [];
  ranks: Rank[] = [];
  bars: Bar[] = [];
  metrics = new Map<string, Metric>();
  pipelines: Pipeline[] = [];
  leftOut = 0;
  thinned = false;
  /** Counts changes of the metrics. */
  version = 0;
  private listeners = new Set<() => void>();

  /** Call `listener` after every change; gives what ends that. */
  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
    };
  }

  changed(): void {
    for (const listener of this.listeners) listener();
  }

  /** Replace everything by what a document says. */
  load(document: RunDocument): void {
    this.metrics.clear();
    const series = document.metrics.reduce((sum, part) => sum + part.series.length, 0);
    for (const part of document.metrics) {
      const metric = this.metric(part.name);
      for (const [rank, steps, values] of part.series) {
        metric.column(rank, ROOM / Math.max(1, series)).append(decodeSteps(steps), decodeFloats(values));
      }
      if (part.band !== undefined) {
        const { steps, mean, low, high } = part.band;
        const last = part.last;
        const values = decodeFloats(last?.values ?? "");
        metric.setBand(
          {
            steps: decodeFloats(steps),
            mean: decodeFloats(mean),
            low: decodeFloats(low),
            high: decodeFloats(high),
          },
          last === undefined
            ? null
            : {
                last: new Map(last.ranks.map((rank, index) => [rank, values[index] ?? NaN])),
                bad: (part.bad ?? []).map(([rank, step, kind]) => ({ rank, step, kind })),
              },
        );
      }
    }
    this.leftOut = document.left_out ?? 0;
    this.version += 1;
    this.setPipelines(document.pipelines ?? []);
    this.update(document);
  }

  /** Replace what is known of pipelines. */
  setPipelines(parts: PipelinePart[]): void {
    this.pipelines = parts.map((part) => ({
      ...part,
      lanes: part.lanes.map(([rank, stages, text]) => ({ rank, stages, actions: actionsOf(decodeShorts(text)) })),
    }));
  }

  /** Take over what changes all the time. */
  update(status: Status): void {
    this.run = status.run;
    this.size = status.size;
    this.outcome = status.outcome;
    this.elapsed = status.elapsed;
    this.nodes = status.nodes;
    this.thinned = status.thinned ?? false;
    this.ranks = status.ranks.map((row) => ({
      rank: row[0],
      node: row[1],
      state: row[2],
      step: row[3] ?? null,
      memory: row[4] ?? null,
      cpu: row[5] ?? null,
      gpu: row[8] == null ? null : { utilisation: row[6] ?? null, used: row[7] ?? 0, total: row[8] },
      pace: row[9] ?? null,
      words: status.words[String(row[0])] ?? "",
    }));
    this.bars = status.bars.map(([number, name, parts]) => ({
      number,
      name,
      ranks: parts.map(([rank, done, total, rate, ended]) => ({
        rank,
        done: done ?? 0,
        total,
        rate,
        ended: ended !== 0,
      })),
    }));
    this.changed();
  }

  /** Append points of one rank. */
  append(name: string, rank: number, steps: ArrayLike<number>, values: ArrayLike<number>): void {
    const metric = this.metric(name);
    if (metric.band !== null) {
      // What came as a mean over ranks cannot be gone on with: from here on every rank has its own points.
      this.metrics.set(name, unfolded(metric));
    }
    this.metric(name)
      .column(rank, ROOM / Math.max(1, this.metrics.size * Math.max(1, this.ranks.length)))
      .append(steps, values);
    this.version += 1;
  }

  private metric(name: string): Metric {
    let found = this.metrics.get(name);
    if (found === undefined) {
      found = new Metric(name);
      this.metrics.set(name, found);
    }
    return found;
  }

  /** The metrics in the order in which they are shown: losses, what else was logged, learning rates and speeds. */
  get ordered(): Metric[] {
    const place = (metric: Metric): number =>
      (isMain(metric.name) ? 0 : 2) + (metric.name.toLowerCase().includes("loss") ? 0 : 1);
    return [...this.metrics.values()].sort((one, other) => place(one) - place(other));
  }
}

/** A metric whose early part, known only as a band, stands in for every rank's own points. */
function unfolded(metric: Metric): Metric {
  const found = new Metric(metric.name);
  const band = metric.band!;
  for (const rank of metric.last.keys()) {
    const own = metric.columns.get(rank);
    const column = found.column(rank, 1 << 16);
    if (own !== undefined) column.append(own.steps.subarray(0, own.length), own.values.subarray(0, own.length));
    else column.append(band.steps, band.mean);
  }
  return found;
}

function actionsOf(rows: Uint16Array): Action[] {
  const found: Action[] = [];
  for (let row = 0; row + 4 < rows.length; row += 5) {
    const [kind, stage, microbatch, start, length] = rows.subarray(row, row + 5) as unknown as [
      number,
      number,
      number,
      number,
      number,
    ];
    found.push({
      kind: String.fromCharCode(kind),
      stage,
      microbatch,
      start: start / WHOLE,
      length: length / WHOLE,
    });
  }
  return found;
}

function kindOf(value: number): string {
  return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
