/**
 * The document of a run: a notebook saves it, and a live widget starts from it.
 *
 * `jupyter_dtrain/view/document.py` writes it. A metric's numbers are little-endian float32 in base64.
 */

import type {
  BarPart,
  MetricPart,
  PipelinePart,
  RankRow,
  RunDocument,
  RunOutcome,
  RunRankState,
  Status,
  Steps,
  WorldRankState,
} from "./generated";

export const MIME = "application/vnd.jupyter-dtrain.run+json";

/** The newest version that this code can read. */
const VERSION = 1;

export type { BarPart, MetricPart, PipelinePart, RankRow, RunDocument, RunOutcome as Outcome, Status, Steps };

export type RankState = RunRankState | WorldRankState | RunOutcome;

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

/** Decode the steps of a series of `count` values. A document that names more steps has no values for the rest. */
export function decodeSteps(steps: Steps, count: number): ArrayLike<number> {
  if (typeof steps === "string") return decodeFloats(steps);
  return evenSteps(steps[0], steps[1], Math.min(steps[2], count));
}

/** `count` steps that start at `first` and are `distance` apart. */
export function evenSteps(first: number, distance: number, count: number): Float64Array {
  const found = new Float64Array(count);
  for (let index = 0; index < count; index += 1) found[index] = first + index * distance;
  return found;
}

/** The bytes in a base64 text. */
export function decodeBytes(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
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
