/**
 * Chooses between two sources of one run: the server's stream and the kernel's broadcasts.
 *
 * Both fold the same numbered events. The stream is preferred, because the sidebar shows it; but a panel must neither
 * stand still while the kernel has news, nor go back.
 */

/** Milliseconds by which the stream may be behind. */
const LATE = 1000;

/** How far a source is: for each rank, how many of its events it includes. */
interface Place {
  outcome: string;
  reach: readonly number[];
}

/** Whether a source has all events of each rank up to `reach`. A run that has ended has all. */
export function covers(place: Place, reach: readonly number[]): boolean {
  return place.outcome !== "running" || reach.every((end, rank) => (place.reach[rank] ?? 0) >= end);
}

export class Freshest {
  private leads = false;
  /** A place that the kernel had reached at a time, and the stream has not. */
  private missing: { reach: readonly number[]; since: number } | null = null;

  /** Whether to draw by the kernel's news, which have come to `kernel`. Ask after every change of either. */
  kernelLeads(stream: Place | null, kernel: Place, now: number): boolean {
    if (stream === null) return true;
    if (this.missing === null || covers(stream, this.missing.reach)) {
      this.missing = covers(stream, kernel.reach) ? null : { reach: kernel.reach, since: now };
    }
    if (covers(stream, kernel.reach)) this.leads = false;
    else if (this.missing !== null && now - this.missing.since > LATE && covers(kernel, stream.reach)) {
      this.leads = true;
    }
    return this.leads;
  }
}
