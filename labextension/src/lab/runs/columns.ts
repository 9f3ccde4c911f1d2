/** The columns of the table of runs: their keys, which the server knows too, their heads, and which there are at first. */

import type { ColumnChoice, StoredRun } from "../messages";

/** What the table shows of a run that has no configuration value and no metric for it. */
export const FIELDS = [
  "last loss",
  "lowest loss",
  "outcome",
  "started",
  "elapsed",
  "ranks",
  "tags",
  "note",
  "group",
  "world",
  "number",
  "notebook",
  "heading",
] as const;
export type Field = (typeof FIELDS)[number];

/** Those that the table has at first, after losses and configuration. */
const USUAL: readonly Field[] = ["outcome", "started", "elapsed", "ranks", "tags", "note"];

/** Configuration values that the table has at first, of those that differ between runs. */
const FEW = 4;

export type How = "last" | "min" | "max";

/** What a column shows. */
export type Column =
  | { kind: "field"; name: Field | "name" | "run" }
  | { kind: "config"; name: string }
  | { kind: "metric"; name: string; how: How }
  /** The value of `name` at the step at which `other` has its lowest or highest. */
  | { kind: "at"; name: string; other: string; how: "min" | "max" };

export function keyOf(column: Column): string {
  switch (column.kind) {
    case "field":
      return column.name;
    case "config":
      return `config:${column.name}`;
    case "metric":
      return `metric:${column.name}:${column.how}`;
    case "at":
      return `metric:${column.name}:at:${column.other}:${column.how}`;
  }
}

/** The column of a key; null if it is none. Names may have colons. */
export function columnOf(key: string): Column | null {
  if (key === "name" || key === "run" || (FIELDS as readonly string[]).includes(key)) {
    return { kind: "field", name: key as Field };
  }
  if (key.startsWith("config:")) return { kind: "config", name: key.slice("config:".length) };
  const at = /^metric:(.+):at:(.+):(min|max)$/s.exec(key);
  if (at !== null) return { kind: "at", name: at[1]!, other: at[2]!, how: at[3] as "min" };
  const metric = /^metric:(.+):(last|min|max)$/s.exec(key);
  return metric === null ? null : { kind: "metric", name: metric[1]!, how: metric[2] as How };
}

/** Whether the server has to be asked for its values: those of most fields are in each run. */
export function isAsked(key: string): boolean {
  return key.startsWith("config:") || key.startsWith("metric:") || key.endsWith(" loss");
}

/** Whether people want the highest of it, and not the lowest. */
export function isScore(name: string): boolean {
  return /(^|[^a-z])(acc|accuracy|f1|auc|auroc|score|precision|recall|bleu|rouge|iou|map|r2|reward|psnr)([^a-z]|$)/i.test(
    name,
  );
}

/** Whether it is a loss, and not the rate or the scale of one. */
function isLoss(name: string): boolean {
  return /loss|nll|perplexity|cross_entropy/i.test(name) && !/scale|\/s$|time/i.test(name);
}

/** Names by the number of runs that have them, the most first; of equals those whose name is shorter. */
function most(choices: readonly ColumnChoice[], wanted: (name: string) => boolean): string[] {
  return choices
    .filter(({ name }) => wanted(name))
    .sort((one, other) => other.runs - one.runs || one.name.length - other.name.length)
    .map(({ name }) => name);
}

/** The columns of a table whose columns nobody has chosen: losses, a score, what differs between the runs, and fields. */
export function usualColumns(configs: readonly ColumnChoice[], metrics: readonly ColumnChoice[]): string[] {
  const evaluates = (name: string): boolean => /^(val|valid|validation|eval|test|dev)/i.test(name);
  const [evaluation] = most(metrics, (name) => isLoss(name) && evaluates(name));
  const [score] = most(metrics, (name) => isScore(name) && evaluates(name)).concat(most(metrics, isScore));
  const found: Column[] = [
    { kind: "field", name: "last loss" },
    { kind: "field", name: "lowest loss" },
  ];
  if (evaluation !== undefined) found.push({ kind: "metric", name: evaluation, how: "min" });
  if (score !== undefined) found.push({ kind: "metric", name: score, how: "max" });
  for (const { name } of configs.filter((one) => one.distinct > 1).slice(0, FEW)) found.push({ kind: "config", name });
  for (const name of USUAL) found.push({ kind: "field", name });
  return found.map(keyOf);
}

/** The columns with one more: a metric or a value of the configuration stands before the fields, where it is seen. */
export function withColumn(columns: readonly string[], key: string): string[] {
  const asked = columns.map(isAsked);
  const place = isAsked(key) ? asked.lastIndexOf(true) + 1 : columns.length;
  return [...columns.slice(0, place), key, ...columns.slice(place)];
}

/** The value of a run in one of the columns that were `asked` for. */
export function valueOf(run: StoredRun, key: string, asked: readonly string[]): StoredRun["values"][number] {
  const place = asked.indexOf(key);
  return place === -1 ? null : (run.values[place] ?? null);
}
