/** Stored runs, as the server gives and changes them. Each request throws an Error that says what to do. */

import type { ServerConnection } from "@jupyterlab/services";
import { endingOf, type Ending } from "../../outcome";
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
  constructor(private settings: ServerConnection.ISettings) {}

  /** The newest runs, or those before the run with the id `before`. */
  list(filters: Filters, limit: number, before?: number): Promise<Listing> {
    const query: Record<string, string> = { limit: `${limit}` };
    if (before !== undefined) query.before = `${before}`;
    for (const [name, value] of Object.entries(filters)) if (value !== "") query[name] = value as string;
    return request(this.settings, "GET", ["runs"], undefined, query);
  }

  /** One run; null if it is no longer kept. */
  async find(id: number): Promise<StoredRun | null> {
    const [run] = (await this.list(ALL, 1, id + 1)).runs;
    return run?.id === id ? run : null;
  }

  edit(id: number, changes: Changes): Promise<StoredRun> {
    return request(this.settings, "PATCH", ["runs", `${id}`], changes);
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

/** How a stored run ended. The store has no value of a last loss that is not finite. */
export function endingOfStored(run: StoredRun): Ending {
  return endingOf(
    run.outcome,
    run.losses.map((loss) => loss.last ?? NaN),
    run.remark,
  );
}

/** The name by which people call a run: `world/3`. */
export function labelOf(run: StoredRun): string {
  return `${run.world}/${run.number}`;
}
