/** Finds a cell's target ranks from its text, by the same rules as `jupyter_dtrain/magics/transform.py`. */

import { RANK_MAGICS, VALUED_OPTIONS, VERB_MAGICS } from "../generated";

/** The magic that begins a cell for all ranks, as people read it. */
export const MAGIC = "%%distributed";

const ON_RANKS = new RegExp(`^\\s*%%(${RANK_MAGICS.join("|")})\\b`);
const STAYS = new RegExp(
  `^\\s*(%%|%(${VERB_MAGICS.join("|")}|load_ext|reload_ext|unload_ext|local)\\b|(exit|quit)\\s*(\\(\\s*\\))?\\s*$)`,
);
const HELP = /\s(-h|--help)(\s|$)/;

/** Brackets around ranks, as in `%%rank[0, 1]`. */
const BRACKETS = /\[([^\]]*)\]/;

const WORDS = /(?:"[^"]*"|'[^']*'|[^\s"'])+/g;

/** Options whose value is the next word. */
const VALUED = new Set(VALUED_OPTIONS);

export interface CellTarget {
  /** The ranks as the cell writes them; null: all. */
  ranks: string | null;
  /** The number, from 0, of the first line that is not blank. */
  line: number;
}

/** The ranks in the arguments of a magic; null if it must name ranks but does not. */
function ranksOf(magic: string, text: string): string | null {
  let pending = "";
  let found: string | null = magic === "rank" ? null : "all";
  const plain = text.replace(BRACKETS, (_, ranks: string) => ` ${ranks.replaceAll(/\s/g, "")}`);
  for (const quoted of plain.match(WORDS) ?? []) {
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

/** The target of a cell with these lines; null if it runs in the notebook. `auto`: plain cells run on the ranks too. */
export function cellTarget(lines: Iterable<string>, auto: boolean): CellTarget | null {
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
