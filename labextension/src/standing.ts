/** The ranks of a large world in few places: the odd ones one by one, all by host. The text of a cell does the same. */

import { rankList } from "./format";
import type { Rank } from "./model";
import type { RankState } from "./runDocument";

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
      .map(([state, many]) => `${many} ${state}`)
      .join(", "),
  };
}
