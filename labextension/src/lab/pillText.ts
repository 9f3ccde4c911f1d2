/** The text and the look of the pill on a cell. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { count } from "../format";
import { cellTarget } from "./cellTarget";
import type { RunSummary, World } from "./messages";

export type Look = "still" | "running" | "failing";

/** The pill of one cell, from its text, its notebook's kernel and the worlds; null if it runs in the notebook. */
export function pillOf(
  lines: Iterable<string>,
  cell: string,
  kernel: string | undefined,
  worlds: World[],
  trans: TranslationBundle,
): { text: string; look: Look; line: number } | null {
  const driven = worlds.filter((world) => kernel !== undefined && world.driver?.kernel === kernel);
  const found = cellTarget(
    lines,
    driven.some((world) => world.driver!.auto && world.driver!.there),
  );
  if (found === null) return null;
  const to =
    found.ranks === null
      ? trans.__("all ranks")
      : /^\d+$/.test(found.ranks)
        ? trans.__("rank %1", found.ranks)
        : trans.__("ranks %1", found.ranks);
  const run = driven
    .flatMap((world) => world.runs)
    .reverse()
    .find((one) => one.cell === cell);
  if (run === undefined) return { text: to, look: "still", line: found.line };
  const bad = (["error", "lost"] as const).filter((state) => run.states[state]);
  return { text: `${to} · ${live(run, bad, trans)}`, look: bad.length > 0 ? "failing" : "running", line: found.line };
}

function live(run: RunSummary, bad: readonly string[], trans: TranslationBundle): string {
  const total = run.ranks.length;
  const busy = (run.states.running ?? 0) + (run.states.waiting ?? 0);
  const words = [trans.__("running")];
  if (run.step !== null) words.push(trans.__("step %1", count(run.step)));
  if (bad.length > 0) words.push(...bad.map((state) => trans.__("%1 of %2 %3", run.states[state], total, state)));
  else if (busy < total) words.push(trans.__("%1 of %2 done", total - busy, total));
  return words.join(" · ");
}
