/** Which cells go to which ranks, by their text: the same rules as in `jupyter_dtrain/magics/transform.py`. */

const ON_RANKS = /^\s*%%(distributed|rank)\b/;
const RANKS = /^\s*%%(?:rank\s+|distributed\s(?:.*\s)?(?:-r\s*|--ranks[\s=]\s*))(\S+)/;
const STAYS = /^\s*(%%|%(distributed|load_ext|reload_ext|unload_ext|local)\b|(exit|quit)\s*(\(\s*\))?\s*$)/;
const HELP = /\s(-h|--help)(\s|$)/;

export interface Addressed {
  /** As the cell names them; null: all. */
  ranks: string | null;
  /** The number, from 0, of the line that says so: the first that is not blank. */
  line: number;
}

/** Where a cell of these lines goes; null: nowhere. `auto`: plain cells go to the ranks too. */
export function addressed(lines: Iterable<string>, auto: boolean): Addressed | null {
  let line = -1;
  let found: number | null = null;
  for (const text of lines) {
    line += 1;
    if (text.trim() === "") continue;
    if (found === null) {
      if (ON_RANKS.test(text)) {
        const ranks = RANKS.exec(text)?.[1] ?? null;
        return HELP.test(text) ? null : { ranks: ranks === "all" ? null : ranks, line };
      }
      if (!auto || STAYS.test(text)) return null;
      found = line;
    }
    if (/^\s*#/.test(text)) continue;
    return STAYS.test(text) ? null : { ranks: null, line: found };
  }
  return null;
}
