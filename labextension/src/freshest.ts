/**
 * Chooses between two models of one run: the server's stream has one, the kernel's broadcasts the other.
 *
 * Both fold the same numbered events. The stream is preferred, because the sidebar shows it; but a panel must neither
 * stand still while the other one has news, nor go back.
 */

import type { RunModel } from "./model";

/** Milliseconds by which the stream may be behind. */
const LATE = 1000;

/** Whether a model has all events of each rank up to `reach`. A run that has ended has all. */
function covers(model: RunModel, reach: readonly number[]): boolean {
  return model.outcome !== "running" || reach.every((end, rank) => (model.reach[rank] ?? 0) >= end);
}

export class Freshest {
  private kernelLeads = false;
  /** What the kernel's model had reached at a time, and the stream's has not. */
  private missing: { reach: readonly number[]; since: number } | null = null;

  /** The model to show now. Ask after every change of either, and each second. */
  choose(stream: RunModel | null, kernel: RunModel | null, now: number): RunModel | null {
    if (stream === null || kernel === null) return stream ?? kernel;
    if (this.missing === null || covers(stream, this.missing.reach)) {
      this.missing = covers(stream, kernel.reach) ? null : { reach: kernel.reach, since: now };
    }
    if (covers(stream, kernel.reach)) this.kernelLeads = false;
    else if (this.missing !== null && now - this.missing.since > LATE && covers(kernel, stream.reach)) {
      this.kernelLeads = true;
    }
    return this.kernelLeads ? kernel : stream;
  }
}
