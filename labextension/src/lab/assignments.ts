/** Variables as a person types them. */

/** `A=1 B=2` as an object. */
export function assignments(text: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const part of text.split(/\s+/).filter((one) => one !== "")) {
    const at = part.indexOf("=");
    found[at < 0 ? part : part.slice(0, at)] = at < 0 ? "" : part.slice(at + 1);
  }
  return found;
}
