/** The text of the filter: its conditions, which the server reads, and those that a click adds or takes away. */

/** The conditions of a filter, as they are written: spaces divide them, but not within quotes. */
export function conditionsOf(where: string): string[] {
  return where.match(/(?:"(?:\\.|[^"\\])*"?|[^\s"])+/gs) ?? [];
}

/** The condition that a field has this value, or that some of it has, as a tag. */
export function conditionOf(field: string, value: string): string {
  const plain = /^[\p{L}\p{N}_][\p{L}\p{N}_./-]*$/u.test(value);
  return `${field}:${plain ? value : `"${value.replace(/["\\]/g, "\\$&")}"`}`;
}

/** The filter without this condition if it has it, else with it. */
export function toggled(where: string, condition: string): string {
  const found = conditionsOf(where);
  const rest = found.filter((one) => one !== condition);
  return (rest.length === found.length ? [...rest, condition] : rest).join(" ");
}

/** The filter with `field` equal to `value`, in place of other values that it asked for; an empty value takes it out. */
export function replaced(where: string, field: string, value: string): string {
  const rest = conditionsOf(where).filter((one) => !one.startsWith(`${field}:`));
  return (value === "" ? rest : [...rest, conditionOf(field, value)]).join(" ");
}

/** The value of a condition `field:value`; empty if the filter has none or another kind. */
export function wantedOf(where: string, field: string): string {
  const found = conditionsOf(where).find((one) => one.startsWith(`${field}:`));
  if (found === undefined) return "";
  const text = found.slice(field.length + 1);
  return /^".*"$/s.test(text) ? text.slice(1, -1).replace(/\\(.)/gs, "$1") : text;
}
