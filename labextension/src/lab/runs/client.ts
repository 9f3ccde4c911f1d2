/** Stored runs, as the server gives and changes them. Each request throws an Error that says what to do. */

import type { ServerConnection } from "@jupyterlab/services";
import { endingOf, STRANGE, type Ending } from "../../outcome";
import { read, request, type Query } from "../connection";
import type { RunColumns, RunListing, StoredRun, TableView } from "../messages";

/** The view of a table that nobody has changed. Without columns, it has the usual ones. */
export const PLAIN: TableView = { name: "", where: "", sort: [], columns: [], group: "", everything: false };

/** What a listing begins with, and how long it is. */
export interface Part {
  limit: number;
  offset?: number;
}

/** The most runs of one answer. */
export const MOST = 2000;

export type Changes = Partial<Pick<StoredRun, "name" | "note" | "tags" | "kept">>;

export type ReportFormat = "html" | "md" | "csv";

export class RunsClient {
  constructor(readonly settings: ServerConnection.ISettings) {}

  /** The runs that a view wants; `unless` the store still has this version. Of columns, it names those to send. */
  async list(view: TableView, part: Part, unless = ""): Promise<RunListing> {
    const { where, sort, columns, group, everything } = view;
    const query: Query = { limit: `${part.limit}`, sort, columns };
    if (part.offset !== undefined && part.offset > 0) query.offset = `${part.offset}`;
    if (where.trim() !== "") query.where = where;
    if (group !== "") query.group = group;
    if (everything) query.everything = "1";
    if (unless !== "") query.unless = unless;
    const found = await request<RunListing>(this.settings, "GET", ["runs"], undefined, query);
    return found.same ? found : { ...found, runs: found.runs.map(marked) };
  }

  /** The runs with these ids that are still kept, newest first. */
  async find(ids: readonly number[], columns: string[] = []): Promise<StoredRun[]> {
    if (ids.length === 0) return [];
    const view = { ...PLAIN, where: `id:${ids.join("|")}`, columns, everything: true };
    return (await this.list(view, { limit: Math.min(MOST, ids.length) })).runs;
  }

  async edit(id: number, changes: Changes): Promise<StoredRun> {
    return marked(await request<StoredRun>(this.settings, "PATCH", ["runs", `${id}`], changes));
  }

  async remove(id: number): Promise<void> {
    await request(this.settings, "DELETE", ["runs", `${id}`]);
  }

  columns(id: number, points: number): Promise<RunColumns> {
    return request(this.settings, "GET", ["runs", `${id}`, "metrics"], undefined, {
      points: `${points}`,
      lineage: "1",
    });
  }

  csv(id: number): Promise<string> {
    return read(this.settings, "GET", ["runs", `${id}`, "csv"]);
  }

  /** A report on runs, as one file. */
  report(ids: readonly number[], format: ReportFormat): Promise<string> {
    return read(this.settings, "GET", ["report"], undefined, { ids: ids.join(), format });
  }

  async saveView(view: TableView): Promise<void> {
    await request(this.settings, "PUT", ["views", view.name], view);
  }

  async deleteView(name: string): Promise<void> {
    await request(this.settings, "DELETE", ["views", name]);
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

/** The run with the clock that it needs to tell how long it has taken. */
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
