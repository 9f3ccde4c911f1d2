/** Compares runs: each chart has one metric of all of them. */

import { Column } from "../column";
import { Metric, type RunModel } from "../model";

/** The most metrics that are compared at once. */
const MOST = 6;

/** The metrics that all runs have in common. Each has one column per run, with the mean over the run's ranks. */
export function compare(models: [number, RunModel][]): { metrics: Metric[]; names: string[] } {
  const names = models.map(([id]) => `#${id}`);
  const [first, ...others] = models.map(([, model]) => model);
  const metrics = first!.ordered
    .filter((metric) => others.every((other) => other.metrics.has(metric.name)))
    .slice(0, MOST)
    .map((metric) => {
      const both = new Metric(metric.name);
      models.forEach(([, model], index) => {
        const { steps, values } = mean(model.metrics.get(metric.name)!);
        both.columns.set(index, columnOf(steps, values));
      });
      return both;
    });
  return { metrics, names };
}

function columnOf(steps: ArrayLike<number>, values: ArrayLike<number>): Column {
  const column = new Column(1 << 16);
  column.append(steps, values);
  return column;
}

/** The mean over ranks at each step at which any rank has a value. */
function mean(metric: Metric): { steps: ArrayLike<number>; values: ArrayLike<number> } {
  if (metric.band !== null) return { steps: metric.band.steps, values: metric.band.mean };
  const sums = new Map<number, [number, number]>();
  for (const column of metric.columns.values()) {
    for (let index = 0; index < column.length; index += 1) {
      const value = column.values[index]!;
      if (!Number.isFinite(value)) continue;
      const sum = sums.get(column.steps[index]!) ?? [0, 0];
      sums.set(column.steps[index]!, [sum[0] + value, sum[1] + 1]);
    }
  }
  const steps = [...sums.keys()].sort((one, other) => one - other);
  return { steps, values: steps.map((step) => sums.get(step)![0] / sums.get(step)![1]) };
}
