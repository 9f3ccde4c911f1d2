/**
 * The printed lines of a cell, by rank: which there are, and which of them a person wants to see.
 *
 * A line begins with its ranks, as `jupyter_dtrain/view/labels.py` writes them: `[0,2-3] loss 0.1`. A line without
 * ranks comes from no rank. A label of very many scattered ranks names only some, `[512 ranks: 0,2,4,…] loss 0.1`: it
 * may be any rank's line.
 */

/** A way to look at the lines: as they were printed, one for each rank, those that not all ranks printed, or a rank. */
export type Look = "merged" | "each" | "differences" | number;

export interface Line {
  /** Ascending; empty for a line that comes from no rank. */
  ranks: readonly number[];
  /** Whether ranks are missing from `ranks`. */
  more: boolean;
  text: string;
  /** As it was printed, with its ranks. */
  printed: string;
}

const LABELLED = /^\[(\d+ ranks: )?(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)(,…)?\](?: |$)/;

/** The most ranks that a label may name; anything beyond is a person's own text. */
const MOST = 4096;

function ranksOf(words: string): number[] {
  const found: number[] = [];
  for (const part of words.split(",")) {
    const [first, last = first] = part.split("-").map(Number);
    if (last! - first! >= MOST) return [];
    for (let rank = first!; rank <= last!; rank += 1) found.push(rank);
  }
  return found;
}

/** The lines of a text. The last one need not end yet. */
export function linesOf(text: string): Line[] {
  const lines: Line[] = [];
  const all = text.split("\n");
  if (all.at(-1) === "") all.pop();
  for (const printed of all) {
    const label = LABELLED.exec(printed);
    const more = label?.[3] !== undefined;
    const ranks = label === null || more !== (label[1] !== undefined) ? [] : ranksOf(label[2]!);
    const own = ranks.length === 0 ? printed : printed.slice(label![0].length);
    lines.push({ ranks, more: more && ranks.length > 0, text: own, printed });
  }
  return lines;
}

/** All ranks that printed something, ascending. */
export function ranksIn(lines: readonly Line[]): number[] {
  return [...new Set(lines.flatMap((line) => line.ranks))].sort((one, other) => one - other);
}

/** The lines of a look that contain `search`, in upper or lower case, as they are to be shown. */
export function select(lines: readonly Line[], look: Look, search: string): string[] {
  const found = shownBy(lines, look);
  if (search === "") return found;
  const wanted = search.toLowerCase();
  return found.filter((text) => text.toLowerCase().includes(wanted));
}

function shownBy(lines: readonly Line[], look: Look): string[] {
  if (look === "merged") return lines.map((line) => line.printed);
  if (look === "each")
    return lines.flatMap(({ ranks, more, printed, text }) =>
      ranks.length === 0 || more ? [printed] : ranks.map((rank) => `[${rank}] ${text}`),
    );
  if (look === "differences") return differences(lines);
  return lines.filter(({ ranks, more }) => more || ranks.includes(look)).map((line) => line.text);
}

/** The lines that some ranks printed more often than others, once for each group of ranks. */
function differences(lines: readonly Line[]): string[] {
  const all = ranksIn(lines);
  const counts = new Map<string, Map<number, number>>();
  for (const { ranks, text } of lines) {
    const own = counts.get(text) ?? new Map<number, number>();
    counts.set(text, own);
    for (const rank of ranks) own.set(rank, (own.get(rank) ?? 0) + 1);
  }
  const differs = (text: string): boolean => {
    const own = counts.get(text)!;
    return own.size !== all.length || new Set(own.values()).size > 1;
  };
  return lines.filter(({ ranks, more, text }) => more || (ranks.length > 0 && differs(text))).map(labelled);
}

function labelled({ printed, text, ranks }: Line): string {
  return printed.endsWith(text) ? printed : `[${ranks.join()}] ${text}`;
}
