/** Which cells go to which ranks, by their text: the same rules as in `jupyter_dtrain/magics/transform.py`. */

import { VALUED_OPTIONS } from "../generated";

const ON_RANKS = /^\s*%%(distributed|rank)\b/;
const STAYS = /^\s*(%%|%(distributed|load_ext|reload_ext|unload_ext|local)\b|(exit|quit)\s*(\(\s*\))?\s*$)/;
const HELP = /\s(-h|--help)(\s|$)/;

const WORDS = /(?:"[^"]*"|'[^']*'|[^\s"'])+/g;

const VALUED = new Set(VALUED_OPTIONS);

export interface Addressed {
  /** As the cell names them; null: all. */
  ranks: string | null;
  /** The number, from 0, of the line that says so: the first that is not blank. */
  line: number;
}

/** The ranks that the line of a magic names, by what stands behind its name; null: it names none, and has to. */
function ranksOf(magic: string, text: string): string | null {
  let pending = "";
  let found: string | null = magic === "rank" ? null : "all";
  for (const quoted of text.match(WORDS) ?? []) {
    const word = quoted.replaceAll(/["']/g, "");
    const [, name, value] = /^(--[\w-]+)=(.*)$/.exec(word) ?? /^(-r)(.+)$/.exec(word) ?? [undefined, word, ""];
    if (pending !== "") {
      if (pending === "-r" || pending === "--ranks") found = word;
      pending = "";
    } else if (value !== "" && (name === "-r" || name === "--ranks")) {
      found = value!;
    } else if (VALUED.has(word)) {
      pending = word;
    } else if (magic === "rank" && !/^-\D/.test(word)) {
      found = word;
    }
  }
  return found;
}

/** Where a cell of these lines goes; null: nowhere. `auto`: plain cells go to the ranks too. */
export function addressed(lines: Iterable<string>, auto: boolean): Addressed | null {
  let line = -1;
  let found: number | null = null;
  for (const text of lines) {
    line += 1;
    if (text.trim() === "") continue;
    if (found === null) {
      const begun = ON_RANKS.exec(text);
      if (begun !== null) {
        const ranks = ranksOf(begun[1]!, text.slice(begun[0].length));
        return ranks === null || HELP.test(text) ? null : { ranks: ranks === "all" ? null : ranks, line };
      }
      if (!auto || STAYS.test(text)) return null;
      found = line;
    }
    if (/^\s*#/.test(text)) continue;
    return STAYS.test(text) ? null : { ranks: null, line: found };
  }
  return null;
}
