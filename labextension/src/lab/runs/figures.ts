/** The charts of the chosen runs: which there are, in what order, and the lines of each. */

import { isMain } from "../../model";
import type { Column, RunColumns } from "../messages";
import { COLOURS, DASHES, styleOf } from "./colours";
import { epochsOf, lineOf, meanOf, pointsOf, type Axis, type Epochs, type Line } from "./lines";

export type Spread = "mean" | "ranks";

/** How a chart's numbers are written. */
export type Unit = "number" | "percent" | "bytes" | "rate" | "celsius" | "watts";

export interface Chosen {
  id: number;
  label: string;
  columns: RunColumns;
}

/** Metrics that share a chart: one of training, and what evaluations say about the same. */
export interface Family {
  title: string;
  /** That of training first, if there is one. */
  names: string[];
}

export interface Figure {
  key: string;
  title: string;
  /** The metrics whose lines it has; several only if evaluations lie over training. */
  names: string[];
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
  "disk read": ["rate", "Read from disks of the host"],
  "disk written": ["rate", "Written to disks of the host"],
  "net received": ["rate", "Received by the host over networks"],
  "net sent": ["rate", "Sent by the host over networks"],
  "gpu total": null,
  workers: null,
};

/** What stands in front of a metric's name for the data that it is of, in the order of their marks. */
const PARTS = [
  /^(?:train|training)[_/.-](?=.)/i,
  /^(?:val|valid|validation)[_/.-](?=.)/i,
  /^(?:eval|evaluation|dev)[_/.-](?=.)/i,
  /^test[_/.-](?=.)/i,
];

/** A metric without the data that it is of, and the place of that in `PARTS`; -1 for a name that says nothing of it. */
export function partOf(name: string): [base: string, part: number] {
  const part = PARTS.findIndex((prefix) => prefix.test(name));
  return part === -1 ? [name, -1] : [name.replace(PARTS[part]!, ""), part];
}

/** The charts of metrics: losses first, then other main ones, then speeds and the like, each in order of appearance. */
export function metricFamilies(runs: readonly Chosen[]): Family[] {
  const names = [...new Set(runs.flatMap((run) => run.columns.metrics.map((column) => column.name)))];
  const bases = new Map<string, Map<number, string>>();
  const found: Family[] = [];
  for (const name of names) {
    const [base, part] = partOf(name);
    const members = bases.get(base) ?? new Map<number, string>();
    bases.set(base, members);
    // Where `loss` and `train_loss` are there, they differ: the first lies under evaluations.
    if (part === 0 && names.includes(base)) found.push({ title: name, names: [name] });
    else members.set(Math.max(0, part), name);
  }
  for (const [base, members] of bases) {
    const own = [...members].sort(([one], [other]) => one - other).map(([, name]) => name);
    if (own.length > 0) found.push({ title: own.length > 1 ? base : own[0]!, names: own });
  }
  const first = (family: Family): number => names.indexOf(family.names[0]!);
  const place = ({ title }: Family): number =>
    (isMain(partOf(title)[0]) ? 0 : 2) + (title.toLowerCase().includes("loss") ? 0 : 1);
  return found.sort((one, other) => place(one) - place(other) || first(one) - first(other));
}

/** Whether any of the runs has epochs. */
export function haveEpochs(runs: readonly Chosen[]): boolean {
  return runs.some((run) => epochsOfRun(run) !== null);
}

function epochsOfRun({ columns }: Chosen): Epochs | null {
  const first = columns.metrics.reduce((least, { steps }) => Math.min(least, steps[0] ?? Infinity), Infinity);
  return epochsOf(columns.epochs, first);
}

/**
 * The metrics of a run in charts of `runs`. The curve of a run that goes on with others begins where theirs began.
 *
 * Where one of those is there with a curve of its own, this one begins at the end of that.
 */
function ownMetrics({ id, columns }: Chosen, runs: readonly Chosen[]): Column[] {
  const { lineage, metrics } = columns;
  const shown = new Set(runs.map((run) => run.id));
  const before = lineage.map((part) => part.id !== id && shown.has(part.id)).lastIndexOf(true);
  const from = before === -1 ? undefined : lineage[before + 1]?.first_step;
  return from === undefined
    ? metrics
    : metrics.map((column) => since(column, from)).filter(({ steps }) => steps.length > 0);
}

/** The points of `column` from a step on, and the last one before it. */
function since(column: Column, step: number): Column {
  const first = column.steps.findIndex((one) => one !== null && one >= step);
  const from = first === -1 ? column.steps.length : Math.max(0, first - 1);
  const { steps, times, values } = column;
  return { ...column, steps: steps.slice(from), times: times.slice(from), values: values.slice(from) };
}

export function metricFigures(runs: readonly Chosen[], families: readonly Family[], options: Options): Figure[] {
  const epochs = new Map(options.axis === "epoch" ? runs.map((run) => [run.id, epochsOfRun(run)]) : []);
  const metrics = new Map(runs.map((run) => [run.id, ownMetrics(run, runs)]));
  return families.map(({ title, names }) => ({
    key: `metric ${title}`,
    ...{ title, names },
    unit: "number",
    axis: options.axis,
    lines: names.flatMap((name, index) => {
      // An evaluation alone in its chart is a line like any other.
      const mark = names.length > 1 && partOf(names[0]!)[1] > 0 ? index + 1 : index;
      return linesOf(runs, name, ({ id }) => metrics.get(id) ?? [], options, mark, epochs);
    }),
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
    return [{ key: `resource ${name}`, title: about[1], names: [name], unit: about[0], axis: "time", lines }];
  });
}

function linesOf(
  runs: readonly Chosen[],
  name: string,
  part: (run: RunColumns) => Column[],
  { axis, spread, smoothing }: Options,
  mark = 0,
  epochs: ReadonlyMap<number, Epochs | null> = new Map(),
): Line[] {
  return runs.flatMap((run): Line[] => {
    const columns = part(run.columns).filter((column) => column.name === name);
    if (columns.length === 0) return [];
    const points = columns.map((column) => pointsOf(column, axis, epochs.get(run.id) ?? null));
    const about = { run: run.id, metric: name, mark };
    if (spread === "mean") {
      return [lineOf(meanOf(points), smoothing, { ...about, rank: null, label: run.label, style: styleOf(run.id) })];
    }
    return columns.map(({ rank }, index) =>
      lineOf(points[index]!, smoothing, {
        ...about,
        rank,
        label: runs.length > 1 ? `${run.label} · ${rank}` : String(rank),
        // The ranks of one run differ in colour and dashes; those of several runs have their run's colour.
        style: runs.length > 1 ? { colour: run.id % COLOURS, dash: rank % DASHES } : styleOf(rank),
      }),
    );
  });
}
