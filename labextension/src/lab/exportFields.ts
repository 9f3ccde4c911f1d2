/** The fields of the dialog that makes a job of a notebook, and the request for what was typed into them. */

import type { TranslationBundle } from "@jupyterlab/translation";
import type { ExportTarget } from "../generated";

/** What a person has chosen and typed, all of it as text. */
export interface Wanted {
  target: string;
  /** Empty: the notebook's name. */
  file: string;
  ranks: string;
  nodes: string;
  local: boolean;
  force: boolean;
  /** By target and name, so that another choice of target loses nothing. */
  settings: Record<string, string>;
}

/** The body of the request for what a person wants. Throws an Error for a number that is none. */
export function bodyOf(notebook: string, wanted: Wanted, target: ExportTarget, trans: TranslationBundle): object {
  const count = (text: string, label: string): number | null => {
    if (text.trim() === "") return null;
    const found = Number(text);
    if (!Number.isInteger(found) || found < 1) throw new Error(trans.__("%1 must be a whole number above 0.", label));
    return found;
  };
  const given = target.settings.map(({ name }) => [name, wanted.settings[`${target.name}.${name}`] ?? ""] as const);
  return {
    notebook,
    target: target.name,
    file: wanted.file.trim(),
    ranks: count(wanted.ranks, trans.__("Ranks")),
    nodes: count(wanted.nodes, trans.__("Nodes")),
    with_local: wanted.local,
    force: wanted.force,
    settings: Object.fromEntries(given.filter(([, value]) => value.trim() !== "")),
  };
}
