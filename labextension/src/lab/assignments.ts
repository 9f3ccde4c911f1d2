/** Parses variables as a person types them. */

/** A value in quotes may have spaces. */
const WORDS = /(?:"[^"]*"|'[^']*'|\S)+/g;
const QUOTED = /"([^"]*)"|'([^']*)'/g;

/** Parse `A=1 B="two words"`; `wrong` has the words that are no assignment. */
export function assignments(text: string): { values: Record<string, string>; wrong: string[] } {
  const values: Record<string, string> = {};
  const wrong: string[] = [];
  for (const word of text.match(WORDS) ?? []) {
    const at = word.indexOf("=");
    if (at < 1) wrong.push(word);
    else values[word.slice(0, at)] = word.slice(at + 1).replaceAll(QUOTED, "$1$2");
  }
  return { values, wrong };
}
