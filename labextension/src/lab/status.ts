/** The item in the status bar: the state of the world that the panel shows. */

import type { IStatusBar } from "@jupyterlab/statusbar";
import type { TranslationBundle } from "@jupyterlab/translation";
import { Signal } from "@lumino/signaling";
import { Widget } from "@lumino/widgets";
import { count } from "../format";
import type { RunSummary, World } from "./messages";
import type { Worlds } from "./worlds";

/** The item's text; empty hides the item. `items`: how many the panel shows that need attention. */
export function statusOf(
  worlds: World[],
  selected: World | null,
  items: number,
  trans: TranslationBundle,
  /** The step of a run. */
  stepOf: (world: string, run: RunSummary) => number | null = (_, run) => run.step,
): string {
  const attention = items > 0 ? trans._n("%1 needs attention", "%1 need attention", items) : "";
  if (selected === null) return attention;
  const { runs } = selected;
  const run = runs.at(-1);
  const words = [
    worlds.length > 1 ? trans.__("%1 (1 of %2 worlds)", selected.name, worlds.length) : selected.name,
    stateOf(selected, trans),
  ];
  const step = runs.length === 1 ? stepOf(selected.id, run!) : null;
  if (step !== null) words.push(trans.__("step %1", count(step)));
  if (selected.dead > 0) words.push(trans._n("%1 rank dead", "%1 ranks dead", selected.dead));
  return [...words, attention].filter((word) => word !== "").join(" · ");
}

/** A world's state in words. */
export function stateOf(world: World, trans: TranslationBundle): string {
  switch (world.state) {
    case "starting":
      return trans.__("starting");
    case "ending":
      return trans.__("ending");
    case "failed":
      return trans.__("failed to start");
    case "unreachable":
      return trans.__("not responding");
  }
  return runsOf(world, trans);
}

/** Whether all ranks of a run that go on are paused. */
export function isPaused({ states }: RunSummary): boolean {
  const goes = ["running", "waiting", "asking", "sent"].some((state) => (states[state] ?? 0) > 0);
  return !goes && (states.held ?? 0) > 0;
}

/** The runs that go on, in words. */
export function runsOf(world: World, trans: TranslationBundle): string {
  const numbers = world.runs.map((run) => run.number);
  if (numbers.length === 0) return trans.__("idle");
  if (numbers.length === 1) {
    return isPaused(world.runs[0]!) ? trans.__("run %1 paused", numbers[0]) : trans.__("run %1", numbers[0]);
  }
  if (numbers.length <= 3) return trans.__("runs %1", numbers.join(", "));
  return trans.__("%1 runs", numbers.length);
}

/** Add the item to the status bar; a click calls `show`. */
export function addStatus(bar: IStatusBar, worlds: Worlds, trans: TranslationBundle, show: () => void): void {
  const item = new Widget({ node: document.createElement("button") });
  item.addClass("dtrain-status");
  item.node.title = trans.__("Show the Distributed Training panel");
  item.node.addEventListener("click", show);
  const activeStateChanged = new Signal<Widget, void>(item);
  let shown = "";
  const update = (): void => {
    const items = worlds.items.length;
    const text = statusOf(worlds.worlds, worlds.selected, items, trans, (id, run) => worlds.stepOf(id, run));
    if (text === shown) return;
    shown = text;
    item.node.textContent = text;
    activeStateChanged.emit();
  };
  worlds.changed.connect(update);
  bar.registerStatusItem("jupyter-dtrain:status", {
    item,
    align: "left",
    rank: 90,
    isActive: () => shown !== "",
    activeStateChanged,
  });
}
