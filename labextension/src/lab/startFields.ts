/** The fields of the start dialog: which there are, what a person has typed into them, and what is wrong with that. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { assignments } from "./assignments";
import type { Launcher, Property } from "./messages";

/** The typed text, by option; also for numbers and variables, so that nothing of it is lost. */
export interface Typed {
  launcher: string;
  fields: Record<string, string | boolean>;
}

/** The errors in words, by option; "" stands for no option in particular. */
export type Problems = Record<string, string>;

type Named = [name: string, property: Property];

/** The fields that everybody sees, and those under "More options". */
export function fieldsOf(launcher: Launcher | undefined): { main: Named[]; more: Named[] } {
  const all = Object.entries(launcher?.schema.properties ?? {});
  return { main: all.filter(([, one]) => one.main === true), more: all.filter(([, one]) => one.main !== true) };
}

/** The fields of a new dialog. */
export function atFirst(launchers: Launcher[], ranks: number | null): Typed {
  const first = launchers[0];
  return { launcher: first?.name ?? "", fields: { n: String(ranks ?? first?.default_ranks ?? "") } };
}

/** The same fields after another launcher was chosen, with its own number of ranks, which may be left to it. */
export function choose(launchers: Launcher[], typed: Typed, launcher: string): Typed {
  const ranks = launchers.find((one) => one.name === launcher)?.default_ranks ?? 0;
  return { launcher, fields: { ...typed.fields, n: ranks === 0 ? "" : String(ranks) } };
}

/** The error in a field, in words; empty if there is none. */
export function problemOf(property: Property, typed: string | boolean | undefined, trans: TranslationBundle): string {
  if (typeof typed !== "string" || typed.trim() === "") return "";
  if (property.type === "object") {
    return assignments(typed).wrong.length === 0 ? "" : trans.__("Write NAME=value.");
  }
  if (property.type !== "integer" && property.type !== "number") return "";
  const value = Number(typed);
  const { minimum, maximum } = property;
  const low = minimum !== undefined && value < minimum;
  const high = maximum !== undefined && value > maximum;
  if (Number.isFinite(value) && (property.type === "number" || Number.isInteger(value)) && !low && !high) return "";
  const kind = property.type === "integer" ? trans.__("Enter a whole number") : trans.__("Enter a number");
  if (minimum !== undefined && maximum !== undefined) return trans.__("%1 from %2 to %3.", kind, minimum, maximum);
  if (minimum !== undefined) return trans.__("%1, at least %2.", kind, minimum);
  if (maximum !== undefined) return trans.__("%1, at most %2.", kind, maximum);
  return `${kind}.`;
}

/** The errors in all fields of a launcher. */
export function problemsOf(launcher: Launcher | undefined, typed: Typed, trans: TranslationBundle): Problems {
  const found: Problems = {};
  for (const [name, property] of Object.entries(launcher?.schema.properties ?? {})) {
    const words = problemOf(property, typed.fields[name], trans);
    if (words !== "") found[name] = words;
  }
  return found;
}

/** The options that the server gets; fields that are empty are left out, so the server chooses. */
export function optionsOf(launcher: Launcher | undefined, typed: Typed): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const [name, { type }] of Object.entries(launcher?.schema.properties ?? {})) {
    const value = typed.fields[name];
    if (value === undefined || value === "") continue;
    if (typeof value === "boolean" || type === "string") found[name] = value;
    else found[name] = type === "object" ? assignments(value).values : Number(value);
  }
  return found;
}
