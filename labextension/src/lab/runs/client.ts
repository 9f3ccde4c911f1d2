/** Stored runs, as the server gives and changes them. Each request throws an Error that says what to do. */

import type { ServerConnection } from "@jupyterlab/services";
import { request } from "../connection";
import type { StoredRun } from "../messages";

/** Which runs to list; an empty text stands for all. */
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

  edit(id: number, changes: Changes): Promise<StoredRun> {
    return request(this.settings, "PATCH", ["runs", `${id}`], changes);
  }

  async remove(id: number): Promise<void> {
    await request(this.settings, "DELETE", ["runs", `${id}`]);
  }
}
