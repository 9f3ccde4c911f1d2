/** How values of a configuration are written and compared: JSON, which comes from outside. */

import { number } from "../../format";

/** A value in one line. Numbers are written as they are, since people search for them. */
export function valueText(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "string") return value;
  if (typeof value === "boolean") return value ? "True" : "False";
  return typeof value === "number" ? numberText(value) : JSON.stringify(value);
}

/** A number with all its digits, unless those are what floating point adds: 0.30000000000000004 is 0.3. */
export function numberText(value: number): string {
  if (!Number.isFinite(value)) return number(value);
  const text = String(+value.toPrecision(12));
  return text.replace(/e([+-])(\d)$/, "e$10$2").replace("e+", "e");
}

/** Cuts a text that is shown; the whole is in its tooltip. */
export function cut(text: string, most = 300): string {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}
