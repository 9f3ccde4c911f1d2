/** The rules for items of attention: their next steps, and which of them also become notifications. */

import type { Actions } from "./actions";
import type { Item, RunSummary } from "./messages";

/** In seconds: another page, or this one before a reload, has already shown notifications for older items. */
const FRESH = 15;

/** In seconds: the person sees the end of a shorter run. */
const LONG = 10;

export type Step = "heal" | "restart" | "stacks" | "cell" | "run" | "start";

/** The next steps that a person can take. A run can be looked at when its notebook is closed, and its world gone. */
export function stepsOf(item: Item, actions: Pick<Actions, "worlds" | "hasCell">): Step[] {
  const runs = actions.worlds.find(item.world)?.state === "running";
  const found: Step[] = [];
  if (item.kind === "start" || item.kind === "ended") found.push("start");
  if (item.kind === "dead" && runs) found.push("heal", "restart");
  if (item.kind === "hung" && runs) found.push("stacks");
  if (item.cell !== "" && actions.hasCell(item.cell)) found.push("cell");
  else if (item.run !== null) found.push("run");
  return found;
}

export type Level = "none" | "errors" | "warnings" | "all";
const SHOWN: Record<Level, Item["level"][]> = {
  none: [],
  errors: ["error"],
  warnings: ["error", "warning"],
  all: ["error", "warning", "info"],
};

/**
 * Whether an item becomes a notification. While the page has the `focus`, a run that failed is in sight; and so is a
 * prompt if the notebook `inFront` is the one with its cell.
 */
export function isTold(item: Item, level: Level, now: number, focus: boolean, inFront = false): boolean {
  const inSight = focus && (item.kind === "failed" || (item.kind === "asks" && inFront));
  return now - item.time <= FRESH && SHOWN[level].includes(item.level) && !inSight;
}

/** Whether the end of a run becomes a notification. */
export function isNews(run: RunSummary, level: Level, focus: boolean): boolean {
  return level === "all" && !focus && run.outcome === "ok" && (run.ended ?? 0) - run.started >= LONG;
}
