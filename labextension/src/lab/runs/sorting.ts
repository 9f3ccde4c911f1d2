/** The order of the table's rows, which the server makes: keys of columns, those with `-` in front descending. */

import { columnOf, isScore } from "./columns";

/** The order of a table that nobody has sorted. */
export const NEWEST = "-started";

/** Where a column is in the order, and its direction there; null if the order is not by it. */
export function placeOf(sort: readonly string[], key: string): { place: number; descending: boolean } | null {
  const order = sort.length > 0 ? sort : [NEWEST];
  const place = order.findIndex((one) => one === key || one === `-${key}`);
  return place === -1 ? null : { place, descending: order[place] !== key };
}

/**
 * The order after a click on a column's head: its other direction, or the direction in which one reads it first.
 * `further`: sort by it where the columns before are equal.
 */
export function clicked(sort: readonly string[], key: string, further: boolean): string[] {
  const now = placeOf(sort, key);
  const next = (now === null ? isBestHigh(key) : !now.descending) ? `-${key}` : key;
  if (!further) return next === NEWEST ? [] : [next];
  const order = sort.length > 0 ? sort : [NEWEST];
  return now === null ? [...order, next] : order.map((one, index) => (index === now.place ? next : one));
}

/** Whether one reads the highest value of a column first. */
function isBestHigh(key: string): boolean {
  const column = columnOf(key);
  if (column === null || column.kind === "config") return false;
  if (column.kind === "field") return ["started", "elapsed", "ranks", "number"].includes(column.name);
  return column.kind === "metric" && column.how === "max" ? true : isScore(column.name);
}
