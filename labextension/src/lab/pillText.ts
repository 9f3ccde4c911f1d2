/** The text and the look of the pill on a cell. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { count } from "../format";
import { cellTarget } from "./cellTarget";
import type { RunSummary, World } from "./messages";
import { isPaused } from "./status";

export type Look = "still" | "running" | "failing";

/** The pill of one cell, from its text, its notebook's kernel and the worlds; null if it runs in the notebook. */
export function pillOf(
  lines: Iterable<string>,
  cell: string,
  kernel: string | undefined,
  worlds: World[],
  trans: TranslationBundle,
  /** The step of a run. */
  stepOf: (world: string, run: RunSummary) => number | null = (_, run) => run.step,
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
  const [world, run] =
    driven
      .flatMap((one) => one.runs.map((each) => [one.id, each] as const))
      .reverse()
      .find(([, each]) => each.cell === cell) ?? [];
  if (world === undefined || run === undefined) return { text: to, look: "still", line: found.line };
  const bad = (["error", "dead"] as const).filter((state) => run.states[state]);
  return {
    text: `${to} · ${live(run, stepOf(world, run), bad, trans)}`,
    look: bad.length > 0 ? "failing" : "running",
    line: found.line,
  };
}

function live(run: RunSummary, step: number | null, bad: readonly string[], trans: TranslationBundle): string {
  const total = run.ranks.length;
  const done = (run.states.ok ?? 0) + (run.states.interrupted ?? 0);
  const asks = (run.states.asking ?? 0) > 0;
  const words = [asks ? trans.__("at a prompt") : isPaused(run) ? trans.__("paused") : trans.__("running")];
  if (step !== null) words.push(trans.__("step %1", count(step)));
  if (bad.length > 0) words.push(...bad.map((state) => trans.__("%1 of %2 %3", run.states[state], total, state)));
  else if (done > 0) words.push(trans.__("%1 of %2 done", done, total));
  return words.join(" · ");
}
