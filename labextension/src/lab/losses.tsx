/** The Losses section of the sidebar: the curves of the newest run of the selected world. */

import type { JSX } from "react";
import { clock, rankList } from "../format";
import { Curves } from "./curves";
import { Fragment, h } from "./jsx";
import type { World } from "./messages";
import { useNow, type SectionProps } from "./section";
import type { Details } from "./worlds";

export function Losses({ world, details, trans }: SectionProps & { world: World; details: Details }): JSX.Element {
  const { run } = details;
  const summary = world.run;
  const now = useNow(1000);
  const title =
    run === null || summary === null
      ? ""
      : [
          trans.__("Run %1", summary.number),
          summary.ranks.length === world.size ? "" : trans.__("rank %1", rankList(summary.ranks)),
          summary.outcome === "running" ? trans.__("running") : summary.outcome,
          clock(Math.max(0, (summary.ended ?? now / 1000) - summary.started)),
        ]
          .filter((part) => part !== "")
          .join(" · ");
  return (
    <>
      {title !== "" && <small className="dtrain-run-title">{title}</small>}
      {run === null ? (
        <p className="dtrain-quiet">{trans.__("No cell has run in this world yet.")}</p>
      ) : run.metrics.size === 0 ? (
        <p className="dtrain-quiet">{trans.__("This run has logged no metrics.")}</p>
      ) : (
        <Curves run={run} />
      )}
    </>
  );
}
