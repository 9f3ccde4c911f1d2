/** The colour of a run: it belongs to the run, wherever it is shown and whatever runs are beside it. */

import type { Style } from "./lines";

/** How many colours the theme has for runs, and patterns of dashes: with no common divisor, pairs repeat late. */
export const COLOURS = 8;
export const DASHES = 5;

/**
 * The colour and the dashes of the run with this id.
 *
 * Neighbours differ in both, since one line may lie on another; the first two of the same style are 40 apart. Pictures
 * that Python makes follow the same rule: `style_of` in view/stored.py.
 */
export function styleOf(id: number): Style {
  return { colour: id % COLOURS, dash: id % DASHES };
}
