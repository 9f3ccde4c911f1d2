/** The Losses section of the sidebar: the curves of the selected world's runs that go on, or of its newest. */

import { type JSX, useEffect, useReducer, useRef } from "react";
import { clock, rankList } from "../format";
import type { RunModel } from "../model";
import { endingOfModel } from "../outcome";
import { RunPanel } from "../panel";
import { Fragment, h } from "./jsx";
import type { RunSummary, World } from "./messages";
import type { SectionProps } from "./section";
import type { Details } from "./worlds";

export function Losses({ world, details, trans }: SectionProps & { world: World; details: Details }): JSX.Element {
  const summaries = world.runs.length > 0 ? world.runs : world.run === null ? [] : [world.run];
  const shown = details.runs.flatMap((run) => {
    const summary = summaries.find((one) => one.number === run.run);
    return summary === undefined ? [] : [{ run, summary }];
  });
  if (world.run === null) return <p className="dtrain-quiet">{trans.__("No cell has run in this world yet.")}</p>;
  return (
    <>
      {shown.map((one) => (
        <RunLosses key={one.summary.number} {...one} {...{ world, trans }} />
      ))}
    </>
  );
}

interface RunProps {
  run: RunModel;
  summary: RunSummary;
  world: World;
  trans: SectionProps["trans"];
}

/** The ranks of a run, in words; empty if they are all ranks of the world. */
function ranksOf({ ranks }: RunSummary, world: World, trans: SectionProps["trans"]): string {
  if (ranks.length === world.size) return "";
  return ranks.length === 1 ? trans.__("rank %1", ranks[0]) : trans.__("ranks %1", rankList(ranks));
}

function RunLosses({ run, summary, world, trans }: RunProps): JSX.Element {
  const [, draw] = useReducer((drawn: number) => drawn + 1, 0);
  // The panel of the cell draws at the same moments.
  useEffect(() => run.listen(draw), [run]);
  const title = [
    trans.__("Run %1", summary.number),
    ranksOf(summary, world, trans),
    endingOfModel(run).words,
    clock(run.clock),
  ]
    .filter((part) => part !== "")
    .join(" · ");
  return (
    <>
      <small className="dtrain-run-title">{title}</small>
      {run.metrics.size === 0 ? (
        <p className="dtrain-quiet">{trans.__("This run has logged no metrics.")}</p>
      ) : (
        <Curves run={run} />
      )}
    </>
  );
}

/** The curves of a run, updated while it goes on. */
function Curves({ run }: { run: RunModel }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const panel = new RunPanel(place.current!, run, true);
    return () => {
      panel.destroy();
    };
  }, [run]);
  return <div ref={place} />;
}
