/** The words over the table's columns. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { columnOf, type Column } from "./columns";

export interface Head {
  /** What it is of a metric, such as `lowest`; empty for a field and a configuration value. */
  how: string;
  name: string;
}

export function headOf(key: string, trans: TranslationBundle): Head {
  const column = columnOf(key);
  if (column === null) return { how: "", name: key };
  const hows = { last: trans.__("last"), min: trans.__("lowest"), max: trans.__("highest") };
  switch (column.kind) {
    case "field":
      if (column.name === "last loss") return { how: hows.last, name: trans.__("loss") };
      if (column.name === "lowest loss") return { how: hows.min, name: trans.__("loss") };
      return { how: "", name: fieldOf(column.name, trans) };
    case "config":
      return { how: "", name: column.name };
    case "metric":
      return { how: hows[column.how], name: column.name };
    case "at":
      return { how: trans.__("at %1 %2", hows[column.how], column.other), name: column.name };
  }
}

/** The same in one line. */
export function wordsOf(key: string, trans: TranslationBundle): string {
  const { how, name } = headOf(key, trans);
  return columnOf(key)?.kind === "at" ? `${name} ${how}` : `${how} ${name}`.trim();
}

type Named = Exclude<Extract<Column, { kind: "field" }>["name"], "last loss" | "lowest loss">;

function fieldOf(name: Named, trans: TranslationBundle): string {
  const words: Record<Named, string> = {
    name: trans.__("Name"),
    run: trans.__("Run"),
    outcome: trans.__("Outcome"),
    started: trans.__("Started"),
    elapsed: trans.__("Elapsed"),
    ranks: trans.__("Ranks"),
    tags: trans.__("Tags"),
    note: trans.__("Note"),
    group: trans.__("Group"),
    world: trans.__("World"),
    number: trans.__("Number"),
    notebook: trans.__("Notebook"),
    heading: trans.__("Heading"),
  };
  return words[name];
}
