/** Requests for the page of a run, its media, and what differs between runs. Each throws an Error that says what to do. */

import { readBlob, request } from "../connection";
import type { MediaIndex, RunColumns, RunDifferences, RunListing, RunPage } from "../messages";
import type { RunsClient } from "./client";

/** Points of each curve of a page. */
const POINTS = 2000;

/** The most runs that the server compares at once. */
export const COMPARED = 50;

/** The most runs of one list. */
const LISTED = 2000;

/** Everything about a run but its curves and its media. */
export function pageOf({ settings }: RunsClient, id: number): Promise<RunPage> {
  return request(settings, "GET", ["runs", `${id}`, "page"]);
}

/** The curves of a run, with those of the runs that it goes on with. */
export function curvesOf({ settings }: RunsClient, id: number): Promise<RunColumns> {
  return request(settings, "GET", ["runs", `${id}`, "metrics"], undefined, { points: `${POINTS}`, lineage: "1" });
}

/** What a run has logged under a name. */
export function mediaOf({ settings }: RunsClient, id: number, name: string): Promise<MediaIndex> {
  return request(settings, "GET", ["runs", `${id}`, "media"], undefined, { name });
}

/** The bytes of one thing that a run has logged. */
export function mediumOf({ settings }: RunsClient, medium: number): Promise<Blob> {
  return readBlob(settings, "GET", ["media", `${medium}`]);
}

/** What differs between runs: the first of them is what the others are compared with. */
export function differencesOf({ settings }: RunsClient, ids: readonly number[]): Promise<RunDifferences> {
  return request(settings, "GET", ["runs", "differences"], undefined, { ids: ids.slice(0, COMPARED).join() });
}

/** These runs with their values in some columns. */
export function valuesOf(
  { settings }: RunsClient,
  ids: readonly number[],
  columns: readonly string[],
): Promise<RunListing> {
  const where = `id:${ids.slice(0, LISTED).join("|")}`;
  return request(settings, "GET", ["runs"], undefined, { where, everything: "1", limit: `${LISTED}`, columns });
}

/** One HTML file about these runs, which needs no server. */
export function reportOf({ settings }: RunsClient, ids: readonly number[]): Promise<Blob> {
  return readBlob(settings, "GET", ["report"], undefined, { ids: ids.join(), format: "html" });
}
