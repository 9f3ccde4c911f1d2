/** Compares runs: each chart has one metric of all runs that have it. */

import { Column } from "../column";
import { Metric, type RunModel } from "../model";

/** The most metrics that are compared at once. */
const MOST = 6;

/**
 * The metrics that two or more of the runs have. Each has one column per run, with the mean over the run's ranks; the
 * column's number is the place of the run in `names`.
 */
export function compare(models: RunModel[], names: string[]): { metrics: Metric[]; names: string[] } {
  const all = [...new Set(models.flatMap((model) => model.ordered.map((metric) => metric.name)))];
  const metrics = all
    .filter((name) => models.filter((model) => model.metrics.has(name)).length > 1)
    .slice(0, MOST)
    .map((name) => {
      const common = new Metric(name);
      models.forEach((model, index) => {
        const own = model.metrics.get(name);
        if (own === undefined) return;
        const { steps, values } = mean(own);
        common.columns.set(index, columnOf(steps, values));
      });
      return common;
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
