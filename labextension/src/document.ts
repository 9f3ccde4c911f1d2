/**
 * The document of a run: a notebook saves it, and a live widget starts from it.
 *
 * `jupyter_dtrain/view/document.py` writes it. A metric's numbers are little-endian float32 in base64.
 */

export const MIME = "application/vnd.jupyter-dtrain.run+json";

/** The newest version that this code can read. */
const VERSION = 1;

export type Outcome = "running" | "ok" | "error" | "interrupted" | "lost";
export type RankState = "idle" | "waiting" | "starting" | "stopped" | "unreachable" | "dead" | Outcome;

/** rank, node, state, step, memory in bytes, CPU %, GPU %, GPU memory used and total in bytes, seconds per step. */
export type RankRow = [
  number,
  number,
  RankState,
  (number | null)?,
  (number | null)?,
  (number | null)?,
  (number | null)?,
  (number | null)?,
  (number | null)?,
  (number | null)?,
];

/** rank, done, total, iterations per second, whether the loop has ended (0 or 1). */
export type BarPart = [number, number | null, number | null, number | null, number];

/** Steps in base64, or evenly spaced steps as `[first, distance, count]`. */
export type Steps = string | [number, number, number];

export interface MetricPart {
  name: string;
  series: [number, Steps, string][];
  /** Statistics over all ranks; present if the series were thinned. */
  band?: { steps: string; mean: string; low: string; high: string };
  /** The newest value of each rank; present if some ranks have no series. */
  last?: { ranks: number[]; values: string };
  bad?: [number, number, string][];
}

export interface Status {
  version: number;
  run: number;
  size: number;
  outcome: Outcome;
  elapsed: number;
  nodes: string[];
  ranks: RankRow[];
  words: Record<string, string>;
  bars: [number, string, BarPart[]][];
  /** True if ranks logged faster than the connection can carry; the document then has only extremes. */
  thinned?: boolean;
}

/** One step of a pipeline. `jupyter_dtrain/view/timelines.py` writes it. */
export interface PipelinePart {
  schedule: string;
  step: number;
  /** The number of ranks; `lanes` may have fewer. */
  ranks: number;
  stages: number;
  microbatches: number;
  seconds: number;
  /** The caption, with the size of the bubble. */
  words: string;
  /** A rank, its stages, and its actions (kind, stage, micro-batch, start, length) as uint16 in base64. */
  lanes: [number, number[], string][];
  /** Whether the actions include sends and receives. */
  transfers?: boolean;
}

export interface RunDocument extends Status {
  pipelines?: PipelinePart[];
  metrics: MetricPart[];
  left_out?: number;
  seq?: number;
}

/** Check that `data`, from a notebook or a kernel, is a document. Throws an Error that says what is wrong with it. */
export function readDocument(data: unknown): RunDocument {
  if (typeof data !== "object" || data === null) throw new Error("This is not a jupyter-dtrain run.");
  const found = data as Partial<RunDocument>;
  if (typeof found.version !== "number" || !Array.isArray(found.ranks) || !Array.isArray(found.metrics)) {
    throw new Error("This is not a jupyter-dtrain run.");
  }
  if (found.version > VERSION) {
    throw new Error("This run was saved by a newer jupyter-dtrain: update the package to view it.");
  }
  return found as RunDocument;
}

/** The little-endian float32 in a base64 text. */
export function decodeFloats(text: string): Float32Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length - (binary.length % 4));
  for (let index = 0; index < bytes.length; index += 1) bytes[index] = binary.charCodeAt(index);
  return readFloats(new DataView(bytes.buffer));
}

/** Decode the steps of a series. */
export function decodeSteps(steps: Steps): ArrayLike<number> {
  if (typeof steps === "string") return decodeFloats(steps);
  return evenSteps(steps[0], steps[1], steps[2]);
}

/** `count` steps that start at `first` and are `distance` apart. */
export function evenSteps(first: number, distance: number, count: number): Float64Array {
  const found = new Float64Array(count);
  for (let index = 0; index < count; index += 1) found[index] = first + index * distance;
  return found;
}

/** The little-endian uint16 in a base64 text. */
export function decodeShorts(text: string): Uint16Array {
  const binary = atob(text);
  const found = new Uint16Array(binary.length >> 1);
  for (let index = 0; index < found.length; index += 1) {
    found[index] = binary.charCodeAt(2 * index) | (binary.charCodeAt(2 * index + 1) << 8);
  }
  return found;
}

/** The little-endian float32 in a message's buffer. */
export function readFloats(view: DataView): Float32Array {
  const found = new Float32Array(view.byteLength >> 2);
  for (let index = 0; index < found.length; index += 1) found[index] = view.getFloat32(4 * index, true);
  return found;
}

/** The little-endian float64 in a message's buffer. */
export function readDoubles(view: DataView): Float64Array {
  const found = new Float64Array(view.byteLength >> 3);
  for (let index = 0; index < found.length; index += 1) found[index] = view.getFloat64(8 * index, true);
  return found;
}
