/**
 * How ranks look; and those of a large world in few places: the odd ones one by one, all by host, as in a cell's text.
 */

import { rankList } from "./format";
import type { Rank } from "./model";
import type { RankState } from "./runDocument";

/** How a rank looks: as its state, or, while it runs, as one in a call that needs other ranks. */
export type Look = RankState | "calling";

/** The mark and the words of each. */
export const SHAPES: Record<Look, [path: string, filled: boolean, words: string]> = {
  waiting: ["M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M6 3.5v2.8l1.8 1", false, "waiting"],
  calling: ["M1.5 4.2H10M7.4 1.8L10 4.2M10.5 7.8H2M4.6 10.2L2 7.8", false, "in a call"],
  asking: ["M2 2.5H10V8H6.5L4 10.2V8H2Z", false, "at a prompt"],
  held: ["M4 2.5V9.5M8 2.5V9.5", false, "paused"],
  sent: ["M6 2a4 4 0 1 0 0 8a4 4 0 1 0 0-8M4 6H8", false, "queued"],
  idle: ["M6 2a4 4 0 1 0 0 8a4 4 0 1 0 0-8", false, "idle"],
  running: ["M3 1.5L10.5 6L3 10.5Z", true, "running"],
  ok: ["M1.8 6.4L4.8 9.4L10.4 2.8", false, "done"],
  error: ["M2.2 2.2L9.8 9.8M9.8 2.2L2.2 9.8", false, "error"],
  released: ["M2.2 6H9.8M7 3.2L9.8 6L7 8.8", false, "released"],
  interrupted: ["M2.2 2.2H9.8V9.8H2.2Z", true, "interrupted"],
  lost: ["M6 1L11 6L6 11L1 6ZM4 6H8", false, "died"],
  starting: ["M6 1.5a4.5 4.5 0 1 0 4.5 4.5", false, "starting"],
  stopped: ["M3 2H5V10H3ZM7 2H9V10H7Z", true, "stopped"],
  unreachable: ["M2 6a4 4 0 0 1 8 0M6 8V8.5", false, "not responding"],
  dead: ["M6 1L11 6L6 11L1 6ZM4 6H8", false, "dead"],
};

/** The call that needs other ranks, while the rank is in one. A host, which has a number below 0, is in none. */
function callOf({ rank, state, words }: Rank): string {
  return rank >= 0 && (state === "running" || state === "waiting") ? words : "";
}

/** A rank is in such calls all the time, so one looks as if it waited only once it has stood still for a while. */
export function lookOf(rank: Rank): Look {
  return rank.state === "running" && callOf(rank) !== "" ? "calling" : rank.state;
}

/** The state of a rank, in words: the same in a cell, in the sidebar and on a page that reads aloud. */
export function stateWords(rank: Rank): string {
  const call = callOf(rank);
  if (call === "") return SHAPES[rank.state][2];
  return rank.state === "waiting" ? `waiting in ${call}` : `in ${call}`;
}

/** What there is to say about the state of a rank or a host besides, such as how it ended. */
export function remarkOf(rank: Rank): string {
  return callOf(rank) === "" ? rank.words : "";
}

/** The most ranks that are shown one by one because they are odd. */
const ODD = 32;

/** States of a rank, the gravest first; any other comes last. */
const GRAVE: readonly RankState[] = [
  "lost",
  "dead",
  "error",
  "released",
  "interrupted",
  "unreachable",
  "stopped",
  "asking",
  "held",
  "waiting",
  "sent",
];

const gravity = ({ state }: Rank): number => (GRAVE.includes(state) ? GRAVE.indexOf(state) : GRAVE.length);

/** How often each state occurs, the most common one first. */
function counted(ranks: readonly Rank[]): [RankState, number][] {
  const counts = new Map<RankState, number>();
  for (const { state } of ranks) counts.set(state, (counts.get(state) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
}

/** The ranks that are not in the most common state, then the slowest and those in `apart`; the gravest first. */
export function oddOnes<R extends Rank>(ranks: readonly R[], apart?: ReadonlyMap<number, string>): R[] {
  const common = counted(ranks)[0]?.[0];
  const place = (rank: R): number => (rank.state === common ? GRAVE.length + 1 : gravity(rank));
  return ranks
    .filter((rank) => rank.state !== common || rank.slower !== null || apart?.has(rank.rank))
    .sort((one, other) => place(one) - place(other) || one.rank - other.rank)
    .slice(0, ODD);
}

/** The ranks of a host in one: their gravest state, their slowest pace, and how many are in each state. */
export function together(ranks: readonly Rank[]): { state: RankState; pace: number; list: string; words: string } {
  return {
    state: [...ranks].sort((one, other) => gravity(one) - gravity(other))[0]!.state,
    pace: Math.max(...ranks.map((rank) => rank.pace ?? 0)),
    list: rankList(ranks.map((rank) => rank.rank)),
    words: counted(ranks)
      .reverse()
      .map(([state, many]) => `${many} ${SHAPES[state][2]}`)
      .join(", "),
  };
}
