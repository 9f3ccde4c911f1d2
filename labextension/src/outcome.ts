/** How a run ended, in the same words in its panel, in the sidebar and in the Runs tab. */

import { number } from "./format";
import { OUTCOMES } from "./generated";
import { isMain, type RunModel } from "./model";
import type { Outcome } from "./runDocument";

export interface Ending {
  outcome: Outcome | "nan";
  words: string;
  title: string;
}

/** `last`: the last values of its metrics. If one is not finite, a run that every rank ended well is not well. */
export function endingOf(outcome: Outcome, last: readonly number[]): Ending {
  const strange = last.find((value) => !Number.isFinite(value));
  if (outcome !== "ok" || strange === undefined) return { outcome, words: outcome, title: OUTCOMES[outcome] };
  return { outcome: "nan", words: `ok, but ${number(strange)}`, title: "A metric's last value is not finite." };
}

/** The same for a run whose metrics are at hand. */
export function endingOfModel(run: RunModel): Ending {
  const main = [...run.metrics.values()].filter(({ name }) => isMain(name));
  return endingOf(
    run.outcome,
    main.flatMap(({ last }) => [...last.values()]),
  );
}
