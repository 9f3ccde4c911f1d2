/** The order of the table's rows. */

import type { StoredRun } from "../messages";
import { endingOfStored } from "./client";

export type SortKey = "name" | "run" | "outcome" | "started" | "elapsed" | "ranks" | "last" | "best" | "tags" | "note";

export interface Order {
  key: SortKey;
  descending: boolean;
}

export const NEWEST: Order = { key: "started", descending: true };

const VALUES: Record<SortKey, (run: StoredRun) => string | number | null> = {
  name: (run) => run.name || null,
  run: (run) => `${run.world}/${run.number}`,
  outcome: (run) => endingOfStored(run).words,
  started: (run) => run.started,
  elapsed: (run) => run.elapsed,
  ranks: (run) => run.ranks,
  last: (run) => run.losses[0]?.last ?? null,
  best: (run) => run.losses[0]?.best ?? null,
  tags: (run) => run.tags.join() || null,
  note: (run) => run.note || null,
};

/** Numbers in text count as numbers, so that world/10 comes after world/9. */
const words = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

/** The runs in this order; runs without a value come last in both directions, and of equal ones the newest first. */
export function sorted(runs: readonly StoredRun[], order: Order): StoredRun[] {
  const value = VALUES[order.key];
  const sign = order.descending ? -1 : 1;
  return [...runs].sort((one, other) => {
    const [left, right] = [value(one), value(other)];
    if (left === null || right === null) return left === right ? other.id - one.id : left === null ? 1 : -1;
    const found =
      typeof left === "number" && typeof right === "number" ? left - right : words.compare(`${left}`, `${right}`);
    return sign * found || other.id - one.id;
  });
}

/** The order after a click on a column's head: its other direction, or the direction in which one reads it first. */
export function clicked(order: Order, key: SortKey): Order {
  if (order.key === key) return { key, descending: !order.descending };
  return { key, descending: key === "started" || key === "elapsed" || key === "ranks" };
}
