/**
 * The runs that go on and that the server's stream follows, for the panels in notebooks.
 *
 * A saved panel names its run in its metadata. While the run goes on, its renderer finds the run's model here, the one
 * that the sidebar shows as well.
 */

import type { RunModel } from "./model";
import type { Questions } from "./panel";

/** A panel's display, and its run. */
export interface Mark {
  panel: string;
  /** The world's id; empty if the kernel has an older version of the package. */
  world: string;
  run: number;
}

export interface LiveRun {
  model: RunModel;
  /** Null where nobody answers. */
  questions: Questions | null;
}

const runs = new Map<string, LiveRun>();
const listeners = new Set<() => void>();

function keyOf(mark: Mark): string {
  return mark.world === "" ? mark.panel : `${mark.world}/${mark.run}`;
}

/** The mark in an output's metadata; null if the output is no panel. */
export function markOf(metadata: Record<string, unknown>): Mark | null {
  const { panel, world, run } = (metadata.dtrain ?? {}) as Partial<Mark>;
  return typeof panel === "string" ? { panel, world: world ?? "", run: run ?? 0 } : null;
}

export function liveRun(mark: Mark): LiveRun | null {
  return runs.get(keyOf(mark)) ?? null;
}

/** Have the panels of a run follow it; null ends that. */
export function offer(mark: Mark, run: LiveRun | null): void {
  const key = keyOf(mark);
  if (runs.get(key)?.model === run?.model) return;
  if (run === null) runs.delete(key);
  else runs.set(key, run);
  for (const listener of listeners) listener();
}

/** Call `listener` after every change; returns a function that unsubscribes it. */
export function onOffer(listener: () => void): () => void {
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
  };
}
