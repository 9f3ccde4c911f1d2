/** The state of a run in the front end: loaded from a document, updated by messages, read by the components. */

import { Column } from "./column";
import type { PromptPart, RecordedAct, ReadingLine, StepTimePart } from "./generated";
import type { Outcome, PipelinePart, RankState, RunDocument, Status } from "./runDocument";
import { decodeFloats, decodeShorts, decodeSteps } from "./runDocument";

/** The most points that the page holds for a run, over all series. */
const ROOM = 4_000_000;

/** The clock of a run is set anew if it is wrong by this many milliseconds. */
const WRONG = 5000;

/** The length of a pipeline's step in the unit of its actions' times. */
const WHOLE = 65_535;

export interface Rank {
  rank: number;
  node: number;
  state: RankState;
  step: number | null;
  /** In bytes. */
  memory: number | null;
  /** The memory of its host, in bytes. */
  hostMemory: number | null;
  /** Processes that its code has started, such as those of a DataLoader, and their memory in bytes. */
  workers: number;
  workersMemory: number;
  /** In per cent of one core, with its workers. */
  cpu: number | null;
  gpu: { utilisation: number | null; used: number; total: number } | null;
  /** Seconds per step. */
  pace: number | null;
  /** By which share its steps take longer than the others' median; null unless it is the slow rank. */
  slower: number | null;
  words: string;
}

export interface BarOfRank {
  rank: number;
  done: number;
  total: number | null;
  rate: number | null;
  ended: boolean;
}

/** One action of a stage on a micro-batch; `start` and `length` are fractions of the step. */
export interface Action {
  kind: string;
  stage: number;
  microbatch: number;
  start: number;
  length: number;
}

/** One step of a pipeline, with its actions decoded. */
export interface Pipeline extends Omit<PipelinePart, "lanes"> {
  lanes: { rank: number; stages: number[]; actions: Action[] }[];
}

export interface Bar {
  number: number;
  name: string;
  ranks: BarOfRank[];
}

/** A value that is NaN or infinite, with its rank and step. */
export interface NonFinite {
  rank: number;
  step: number;
  kind: string;
}

/** A step that charts mark, and why. */
export interface Mark {
  step: number;
  words: string;
}

export interface Band {
  steps: Float32Array;
  mean: Float32Array;
  low: Float32Array;
  high: Float32Array;
}

/** How many of a series' newest points count as current. */
export const WINDOW = 20;

export class Metric {
  columns = new Map<number, Column>();
  /** Statistics over all ranks; set if their points were thinned or left out. */
  band: Band | null = null;
  private lasts: Map<number, number> | null = null;
  private lastMean: number | null = null;
  private bad: NonFinite[] = [];

  constructor(readonly name: string) {}

  column(rank: number, room: number): Column {
    let found = this.columns.get(rank);
    if (found === undefined) {
      found = new Column(room);
      this.columns.set(rank, found);
    }
    return found;
  }

  /** Set the band. `rest` has the newest and the NaN or infinite values if some ranks' points are missing. */
  setBand(band: Band, rest: { last: Map<number, number>; mean?: number; bad: NonFinite[] } | null): void {
    this.band = band;
    this.lasts = rest === null ? null : rest.last;
    this.lastMean = rest?.mean ?? null;
    this.bad = rest === null ? [] : rest.bad;
  }

  /** The newest value of each rank. */
  get last(): Map<number, number> {
    if (this.lasts !== null) return this.lasts;
    const found = new Map<number, number>();
    for (const [rank, column] of this.columns) if (column.length > 0) found.set(rank, column.last);
    return found;
  }

  /** The step of the first current point of the rank that is furthest ahead; -Infinity without points. */
  get since(): number {
    const furthest = this.furthest;
    return furthest === undefined ? -Infinity : furthest.steps[Math.max(0, furthest.length - WINDOW)]!;
  }

  private get furthest(): Column | undefined {
    const found = [...this.columns.values()].filter((column) => column.length > 0);
    return found.length === 0 ? undefined : found.reduce((one, other) => (other.lastStep > one.lastStep ? other : one));
  }

  /**
   * The value that stands for the metric; null without points.
   *
   * When the run has ended it is the mean over the ranks that have come as far as any, as in lists of runs and in
   * `show`. While it runs, ranks send their points one after the other: then it is the mean over those that are about
   * as far, or it would jump from one rank's value to another's. A document that lacks ranks brings its value along.
   */
  value(ended: boolean): number | null {
    if (this.lasts !== null) return this.lastMean ?? meanOf([...this.lasts.values()]);
    const since = ended ? (this.furthest?.lastStep ?? NaN) : this.since;
    const columns = [...this.columns.values()].filter((column) => column.length > 0 && column.lastStep >= since);
    return meanOf(columns.map((column) => column.last));
  }

  /** The NaN or infinite values, ordered by step. */
  get nonFinite(): NonFinite[] {
    if (this.lasts !== null) return this.bad;
    const found: NonFinite[] = [];
    for (const [rank, column] of this.columns) {
      for (const index of column.nonFinite) {
        found.push({ rank, step: column.steps[index]!, kind: kindOf(column.values[index]!) });
      }
    }
    return found.sort((one, other) => one.step - other.step);
  }
}

function meanOf(values: readonly number[]): number | null {
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Whether a metric is shown first: all but learning rates, gradient norms and speeds. */
export function isMain(name: string): boolean {
  return !(name.endsWith("/s") || ["lr", "grad_norm"].includes(name.split("/")[0]!));
}

export class RunModel {
  run = 0;
  size = 0;
  outcome: Outcome = "running";
  remark = "";
  /** The step of the rank that is furthest ahead; null before the first. */
  step: number | null = null;
  /** Means from the first step on; of samples, for all ranks together. */
  speed: { steps: number | null; samples: number | null } = { steps: null, samples: null };
  elapsed = 0;
  nodes: string[] = [];
  ranks: Rank[] = [];
  bars: Bar[] = [];
  metrics = new Map<string, Metric>();
  pipelines: Pipeline[] = [];
  /** Steps that all charts mark, and why. */
  marks: Mark[] = [];
  /** What ranks ask a person, and a sentence on that, which is empty while none asks. */
  prompts: readonly PromptPart[] = [];
  /** The newest acts of persons on its loop, oldest first. */
  acts: readonly RecordedAct[] = [];
  /** The step after which all ranks are paused; null while they are not. */
  pausedAt: number | null = null;
  asked = "";
  leftOut = 0;
  /** For each rank, how far its events are included. */
  reach: number[] = [];
  thinned = false;
  /** How the ranks read their data: sentences, and 1 for each that is a warning. */
  reading: ReadingLine[] = [];
  /** Where the time of its steps goes; null while no steps were seen. */
  stepTime: StepTimePart | null = null;
  /** Increases with each change of the metrics. */
  version = 0;
  private listeners = new Set<() => void>();
  /** The time of the page, in milliseconds, at which the run began; messages take different times to come. */
  private began = NaN;
  private timer = 0;

  /** Call `listener` after every change, and each second while the run goes on; returns a function that ends that. */
  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    this.tick();
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) clearTimeout(this.timer);
    };
  }

  changed(): void {
    for (const listener of this.listeners) listener();
  }

  /** Seconds that the run has taken by now: whole ones while it goes on, so that all who ask show the same. */
  get clock(): number {
    if (this.outcome !== "running" || Number.isNaN(this.began)) return this.elapsed;
    // A timer may be a little early.
    return Math.max(0, Math.floor((performance.now() - this.began + 20) / 1000));
  }

  /** Set the clock by a message: the one that took least time is right, unless the clock is wrong by much. */
  private setClock(): void {
    const began = performance.now() - 1000 * this.elapsed;
    if (!(Math.abs(began - this.began) < WRONG)) this.began = began;
    else this.began = Math.min(this.began, began);
    this.tick();
  }

  /** Tell listeners when the clock shows the next second. */
  private tick(): void {
    clearTimeout(this.timer);
    if (this.outcome !== "running" || Number.isNaN(this.began) || this.listeners.size === 0) return;
    const since = performance.now() - this.began;
    this.timer = window.setTimeout(
      () => {
        this.changed();
        this.tick();
      },
      1000 - (((since % 1000) + 1000) % 1000),
    );
  }

  /** Show the state of `other` from now on; returns a function that ends that, and leaves the state as it is then. */
  mirror(other: RunModel): () => void {
    clearTimeout(this.timer);
    const copy = (): void => {
      const { run, size, outcome, elapsed, nodes, ranks, bars, metrics, pipelines, leftOut, version } = other;
      const { thinned, reading } = other;
      Object.assign(this, { run, size, outcome, elapsed, nodes, ranks, bars, metrics, pipelines, leftOut, thinned });
      this.reading = reading;
      this.stepTime = other.stepTime;
      this.step = other.step;
      this.speed = other.speed;
      this.remark = other.remark;
      this.marks = other.marks;
      this.prompts = other.prompts;
      this.acts = other.acts;
      this.pausedAt = other.pausedAt;
      this.asked = other.asked;
      this.version = Math.max(version, this.version + 1);
      this.began = other.began;
      this.changed();
    };
    copy();
    return other.listen(copy);
  }

  /** Replace all state by a document's. */
  load(document: RunDocument): void {
    this.metrics = new Map();
    const series = document.metrics.reduce((sum, part) => sum + part.series.length, 0);
    for (const part of document.metrics) {
      const metric = this.metric(part.name);
      for (const [rank, steps, values] of part.series) {
        const decoded = decodeFloats(values);
        metric.column(rank, ROOM / Math.max(1, series)).append(decodeSteps(steps, decoded.length), decoded);
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
                ...(last.value === undefined ? {} : { mean: decodeFloats(last.value)[0]! }),
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

  /** Replace the pipelines. */
  setPipelines(parts: PipelinePart[]): void {
    this.pipelines = parts.map((part) => ({
      ...part,
      lanes: part.lanes.map(([rank, stages, text]) => ({ rank, stages, actions: actionsOf(decodeShorts(text)) })),
    }));
  }

  /** Update everything but metrics and pipelines. */
  update(status: Status): void {
    this.run = status.run;
    this.size = status.size;
    this.outcome = status.outcome;
    this.remark = status.remark ?? "";
    this.elapsed = status.elapsed;
    this.setClock();
    this.nodes = status.nodes;
    this.reach = status.reach ?? [];
    this.thinned = status.thinned ?? false;
    this.reading = status.reading ?? [];
    this.stepTime = status.step_time ?? null;
    this.marks = (status.marks ?? []).map(([step, words]) => ({ step, words }));
    this.prompts = status.prompts ?? [];
    this.acts = status.acts ?? [];
    this.pausedAt = status.paused ?? null;
    this.asked = status.asked ?? "";
    this.ranks = status.ranks.map((row) => ({
      rank: row[0],
      node: row[1],
      state: row[2],
      step: row[3] ?? null,
      memory: row[4] ?? null,
      cpu: row[5] ?? null,
      gpu: row[8] == null ? null : { utilisation: row[6] ?? null, used: row[7] ?? 0, total: row[8] },
      pace: row[9] ?? null,
      hostMemory: row[10] ?? null,
      workers: row[11] ?? 0,
      workersMemory: row[12] ?? 0,
      slower: row[13] ?? null,
      words: status.words[String(row[0])] ?? "",
    }));
    // Notebooks of earlier versions have neither step nor speed of the run, but those of its ranks.
    this.step = status.step ?? this.ranks.reduce<number | null>((one, { step }) => later(one, step), null);
    this.speed = { steps: status.steps_per_second ?? null, samples: status.samples_per_second ?? null };
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
      // A band cannot be extended, so from here on every rank has points of its own.
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

  /** The metrics in display order: losses, other metrics, then learning rates, gradient norms and speeds. */
  get ordered(): Metric[] {
    const place = (metric: Metric): number =>
      (isMain(metric.name) ? 0 : 2) + (metric.name.toLowerCase().includes("loss") ? 0 : 1);
    return [...this.metrics.values()].sort((one, other) => place(one) - place(other));
  }
}

/** Turn a band into points of every rank: a rank without points of its own gets the band's mean. */
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

function later(one: number | null, other: number | null): number | null {
  return one === null || other === null ? (one ?? other) : Math.max(one, other);
}

function kindOf(value: number): string {
  return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
