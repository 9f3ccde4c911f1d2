/** The types of the server's messages and answers; `jupyter_dtrain/server` writes them. */

import type { Outcome, RankState, RunDocument } from "../document";
import type { News } from "../receiver";

export interface Driver {
  pid: number;
  words: string;
  /** The id of its Jupyter kernel; empty if the driver is not a kernel. */
  kernel: string;
  there: boolean;
  /** Whether its plain cells run on the ranks too. */
  auto: boolean;
}

export interface RunSummary {
  number: number;
  /** The id of its cell in the notebook; empty if unknown. */
  cell: string;
  /** The step of the slowest rank. */
  step: number | null;
  ranks: number[];
  outcome: Outcome;
  /** Seconds since the epoch. */
  started: number;
  ended: number | null;
  /** The number of ranks in each state. */
  states: Record<string, number>;
}

export type WorldState = "starting" | "running" | "ending" | "failed" | "unreachable";

export interface World {
  id: string;
  name: string;
  cwd: string;
  state: WorldState;
  /** The reason for its state; empty if the state needs none. */
  words: string;
  size: number;
  ready: number;
  nodes: number;
  dead: number;
  frameworks: string[];
  started: number;
  /** When the world ends if it has no driver; null while it has one. Seconds since the epoch. */
  lease_end: number | null;
  driver: Driver | null;
  run: RunSummary | null;
}

/** rank, node, host, local rank, device, pid, state, what happened to it, the call it waits in, its role. */
export type RankRow = [number, number, string, number, string, number, RankState, string, string, string];

export interface Item {
  id: string;
  kind: "dead" | "hung" | "nan" | "apart" | "slow" | "memory" | "finished" | "failed" | "ended";
  level: "error" | "warning" | "info";
  /** The world's id and name. */
  world: string;
  name: string;
  run: number | null;
  ranks: number[];
  words: string;
  detail: string;
  time: number;
}

export interface StoredRun {
  id: number;
  world: string;
  number: number;
  ranks: number;
  size: number;
  outcome: Outcome;
  started: number;
  elapsed: number;
  source: string;
}

export interface Launcher {
  name: string;
  title: string;
  cores: number;
  gpus: number;
  default_ranks: number;
  schema: { properties: Record<string, Property> };
}

export interface Property {
  title: string;
  description: string;
  type: "integer" | "boolean" | "string" | "object";
  default?: string;
  enum?: string[];
  minimum?: number;
}

export type Message =
  | { type: "worlds"; worlds: World[] }
  | { type: "attention"; items: Item[] }
  | { type: "ranks"; world: string; ranks: RankRow[] }
  | { type: "run"; world: string; source: string; document: RunDocument }
  | ({ type: "news"; world: string; values?: string; steps?: string } & News);
