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

/** An outcome in a word. */
export function outcomeWords(outcome: string): string {
  return outcome === "lost" ? "died" : outcome;
}

/** What it means that a run ended well, but with NaN. */
export const STRANGE = "A metric's last value is not finite.";

/**
 * `last`: the last values of its metrics. If one is not finite, a run that every rank ended well is not well.
 * `remark`: more about a run that ended well, such as `rank 1 was replaced`.
 */
export function endingOf(outcome: Outcome, last: readonly number[], remark: string): Ending {
  if (outcome !== "ok") return { outcome, words: outcomeWords(outcome), title: OUTCOMES[outcome] };
  const more = remark === "" ? "" : `, ${remark}`;
  const strange = last.find((value) => !Number.isFinite(value));
  if (strange === undefined) {
    const title = remark === "" ? OUTCOMES.ok : "It went on when ranks died, and ended well.";
    return { outcome, words: `ok${more}`, title };
  }
  return { outcome: "nan", words: `ok, but ${number(strange)}${more}`, title: STRANGE };
}

/** The same for a run whose metrics are at hand; one that goes on may be paused. */
export function endingOfModel(run: RunModel): Record<keyof Ending, string> {
  if (run.outcome === "running" && run.pausedAt !== null) {
    return {
      outcome: "paused",
      words: "paused",
      title: "All ranks stand after the same step until a person lets them go on.",
    };
  }
  const main = [...run.metrics.values()].filter(({ name }) => isMain(name));
  return endingOf(
    run.outcome,
    main.flatMap(({ last }) => [...last.values()]),
    run.remark,
  );
}
