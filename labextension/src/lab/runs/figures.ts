/** The charts of the chosen runs: which there are, in what order, and the lines of each. */

import { isMain } from "../../model";
import type { Column, RunColumns } from "../messages";
import { COLOURS, DASHES, styleOf } from "./colours";
import { lineOf, meanOf, pointsOf, type Axis, type Line } from "./lines";

export type Spread = "mean" | "ranks";

/** How a chart's numbers are written. */
export type Unit = "number" | "percent" | "bytes" | "celsius" | "watts";

export interface Chosen {
  id: number;
  label: string;
  columns: RunColumns;
}

export interface Figure {
  key: string;
  title: string;
  unit: Unit;
  axis: Axis;
  lines: Line[];
}

export interface Options {
  axis: Axis;
  spread: Spread;
  /** The weight of smoothing, from 0 to below 1. */
  smoothing: number;
}

/** The resources of a rank, with units and in words; the size of a GPU's memory does not change, and has no chart. */
const RESOURCES: Record<string, [unit: Unit, words: string] | null> = {
  cpu: ["percent", "CPU of a rank and its workers, of one core"],
  rss: ["bytes", "Memory"],
  "workers rss": ["bytes", "Memory of workers"],
  "gpu utilisation": ["percent", "GPU utilisation"],
  "gpu used": ["bytes", "GPU memory, all processes"],
  "gpu reserved": ["bytes", "GPU memory of the rank"],
  "gpu temperature": ["celsius", "GPU temperature"],
  "gpu power": ["watts", "GPU power"],
  "gpu total": null,
  workers: null,
};

/** Names of metrics: losses first, then other main ones, then speeds and the like, each in order of appearance. */
export function metricNames(runs: readonly Chosen[]): string[] {
  const names = [...new Set(runs.flatMap((run) => run.columns.metrics.map((column) => column.name)))];
  const place = (name: string): number => (isMain(name) ? 0 : 2) + (name.toLowerCase().includes("loss") ? 0 : 1);
  return names.sort((one, other) => place(one) - place(other));
}

export function metricFigures(runs: readonly Chosen[], names: readonly string[], options: Options): Figure[] {
  return names.map((name) => ({
    key: `metric ${name}`,
    title: name,
    unit: "number",
    axis: options.axis,
    lines: linesOf(runs, name, (run) => run.metrics, options),
  }));
}

/** Charts of what the ranks used, always over time: that has no steps. */
export function resourceFigures(runs: readonly Chosen[], options: Options): Figure[] {
  const names = new Set(runs.flatMap((run) => run.columns.resources.map((column) => column.name)));
  const known = Object.keys(RESOURCES).filter((name) => names.has(name));
  return [...known, ...[...names].filter((name) => !(name in RESOURCES))].flatMap((name): Figure[] => {
    const about = name in RESOURCES ? RESOURCES[name] : (["number", name] as const);
    if (about == null) return [];
    const lines = linesOf(runs, name, (run) => run.resources, { ...options, axis: "time", smoothing: 0 });
    return [{ key: `resource ${name}`, title: about[1], unit: about[0], axis: "time", lines }];
  });
}

function linesOf(
  runs: readonly Chosen[],
  name: string,
  part: (run: RunColumns) => Column[],
  { axis, spread, smoothing }: Options,
): Line[] {
  return runs.flatMap((run): Line[] => {
    const columns = part(run.columns).filter((column) => column.name === name);
    if (columns.length === 0) return [];
    if (spread === "mean") {
      const points = meanOf(columns.map((column) => pointsOf(column, axis)));
      return [lineOf(points, smoothing, { run: run.id, rank: null, label: run.label, style: styleOf(run.id) })];
    }
    return columns.map((column) =>
      lineOf(pointsOf(column, axis), smoothing, {
        run: run.id,
        rank: column.rank,
        label: runs.length > 1 ? `${run.label} · ${column.rank}` : String(column.rank),
        // The ranks of one run differ in colour and dashes; those of several runs have their run's colour.
        style: runs.length > 1 ? { colour: run.id % COLOURS, dash: column.rank % DASHES } : styleOf(column.rank),
      }),
    );
  });
}
