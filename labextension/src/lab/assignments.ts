/** Parses variables as a person types them. */

/** Parse `A=1 B=2` into an object; a name without `=` gets an empty value. */
export function assignments(text: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const part of text.split(/\s+/).filter((one) => one !== "")) {
    const at = part.indexOf("=");
    found[at < 0 ? part : part.slice(0, at)] = at < 0 ? "" : part.slice(at + 1);
  }
  return found;
}
