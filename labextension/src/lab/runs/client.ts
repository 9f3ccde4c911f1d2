/** Stored runs, as the server gives and changes them. Each request throws an Error that says what to do. */

import type { ServerConnection } from "@jupyterlab/services";
import { endingOf, STRANGE, type Ending } from "../../outcome";
import { read, request } from "../connection";
import type { RunColumns, StoredRun } from "../messages";

/** The runs to list; an empty text stands for all. */
export interface Filters {
  world: string;
  outcome: string;
  search: string;
  tag: string;
}

export const ALL: Filters = { world: "", outcome: "", search: "", tag: "" };

export interface Listing {
  runs: StoredRun[];
  /** How many the filters let through. */
  total: number;
}

export type Changes = Partial<Pick<StoredRun, "name" | "note" | "tags" | "kept">>;

export class RunsClient {
  constructor(readonly settings: ServerConnection.ISettings) {}

  /** The newest runs, or those before the run with the id `before`. */
  async list(filters: Filters, limit: number, before?: number): Promise<Listing> {
    const query: Record<string, string> = { limit: `${limit}` };
    if (before !== undefined) query.before = `${before}`;
    for (const [name, value] of Object.entries(filters)) if (value !== "") query[name] = value as string;
    const found = await request<Listing>(this.settings, "GET", ["runs"], undefined, query);
    return { ...found, runs: found.runs.map(marked) };
  }

  /** One run; null if it is no longer kept. */
  async find(id: number): Promise<StoredRun | null> {
    const [run] = (await this.list(ALL, 1, id + 1)).runs;
    return run?.id === id ? run : null;
  }

  async edit(id: number, changes: Changes): Promise<StoredRun> {
    return marked(await request<StoredRun>(this.settings, "PATCH", ["runs", `${id}`], changes));
  }

  async remove(id: number): Promise<void> {
    await request(this.settings, "DELETE", ["runs", `${id}`]);
  }

  columns(id: number, points: number): Promise<RunColumns> {
    return request(this.settings, "GET", ["runs", `${id}`, "metrics"], undefined, { points: `${points}` });
  }

  csv(id: number): Promise<string> {
    return read(this.settings, "GET", ["runs", `${id}`, "csv"]);
  }
}

/** Tags from text with commas, each once. */
export function tagsOf(text: string): string[] {
  return [...new Set(text.split(",").map((tag) => tag.trim()))].filter((tag) => tag !== "");
}

/** How a stored run ended, in the server's words. */
export function endingOfStored(run: StoredRun): Ending {
  const { outcome, ending, remark } = run;
  if (outcome === "ok" && ending.startsWith("ok, but ")) return { outcome: "nan", words: ending, title: STRANGE };
  return { ...endingOf(outcome, [], remark), words: ending };
}

/** When each run came, by a clock of the page: that of the server may be another. */
const came = new WeakMap<StoredRun, number>();

function marked(run: StoredRun): StoredRun {
  came.set(run, performance.now());
  return run;
}

/** Seconds that a run has taken by now. */
export function elapsedOf(run: StoredRun): number {
  const since = came.get(run);
  if (run.outcome !== "running" || since === undefined) return run.elapsed;
  return run.elapsed + (performance.now() - since) / 1000;
}

/** The name by which people call a run: `world/3`. */
export function labelOf(run: StoredRun): string {
  return `${run.world}/${run.number}`;
}
