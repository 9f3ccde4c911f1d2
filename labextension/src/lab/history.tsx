/** The list of the newest stored trainings, and of those that a filter finds. A click shows a run in the Runs tab. */

import { refreshIcon } from "@jupyterlab/ui-components";
import { type JSX, useMemo, useRef, useState } from "react";
import { clock, number } from "../format";
import { h } from "./jsx";
import type { StoredRun, World } from "./messages";
import { PLAIN, RunsClient, elapsedOf, endingOfStored, labelOf } from "./runs/client";
import { useRunList } from "./runs/list";
import { Tool, type SectionProps } from "./section";

/** Runs that the list shows; the tab has all. */
const SHOWN = 20;

export default function History({ actions, trans }: SectionProps): JSX.Element {
  const { worlds } = actions;
  const client = useMemo(() => new RunsClient(worlds.settings), [worlds]);
  const [view, setView] = useState(PLAIN);
  const place = useRef<HTMLDivElement>(null);
  // A sidebar that is closed, and one behind another, has no box.
  const [visible] = useState(() => () => !document.hidden && place.current?.offsetParent != null);
  const list = useRunList(client, view, worlds, visible, { first: SHOWN, fixed: true });
  const { runs, total } = list.listing;
  const problem = list.wrong?.words ?? list.problem;
  const open = (run?: StoredRun): void => {
    void actions.openRuns(run === undefined ? undefined : [run.id]);
  };
  return (
    <div ref={place} className="dtrain-history">
      <h4>
        {trans.__("Earlier runs")}
        <span className="dtrain-tools-row">
          <button
            className="dtrain-small"
            onClick={() => {
              open();
            }}
          >
            {trans.__("Open the Runs tab")}
          </button>
          <Tool icon={refreshIcon} label={trans.__("Refresh")} run={() => void list.reload()} />
        </span>
      </h4>
      {(total > 0 || view.where !== "") && (
        <input
          type="search"
          className="jp-mod-styled dtrain-search"
          placeholder={trans.__("Search, or tag:best loss<0.5 …")}
          aria-label={trans.__("Search runs")}
          aria-invalid={list.wrong !== null}
          value={view.where}
          onChange={(event) => {
            setView({ ...PLAIN, where: event.target.value });
          }}
        />
      )}
      {problem !== "" && (
        <p className="dtrain-trouble" role="alert">
          {problem}
        </p>
      )}
      {list.loaded && runs.length === 0 && (
        <p className="dtrain-quiet">{view.where !== "" ? trans.__("No run matches.") : trans.__("No runs yet.")}</p>
      )}
      <ul aria-label={trans.__("Earlier runs")}>
        {runs.map((run) => (
          <li key={run.id}>
            <Row run={live(run, worlds.worlds)} trans={trans} open={open} />
          </li>
        ))}
      </ul>
      {runs.length < total && (
        <p className="dtrain-quiet">{trans.__("Showing %1 of %2. See all in the Runs tab.", runs.length, total)}</p>
      )}
    </div>
  );
}

function Row({
  run,
  trans,
  open,
}: {
  run: StoredRun;
  trans: SectionProps["trans"];
  open: (run: StoredRun) => void;
}): JSX.Element {
  const loss = run.losses[0];
  const { outcome, words, title } = endingOfStored(run);
  const facts = [clock(run.elapsed)];
  if (loss !== undefined) facts.push(`${loss.name} ${loss.last === null ? "NaN" : number(loss.last)}`);
  if (run.kept) facts.push(trans.__("kept"));
  return (
    <button
      className="dtrain-stored"
      title={[trans.__("Show it in the Runs tab"), run.note, run.source].filter((part) => part !== "").join("\n\n")}
      onClick={() => {
        open(run);
      }}
    >
      <span className="dtrain-ellipsis">{run.name !== "" ? run.name : labelOf(run)}</span>
      <small>
        {labelOf(run)} ·{" "}
        <span data-outcome={outcome} title={title}>
          {words}
        </span>
        {facts.map((fact) => ` · ${fact}`)}
        {run.tags.map((tag) => (
          <span key={tag} className="dtrain-tag">
            {tag}
          </span>
        ))}
      </small>
    </button>
  );
}

/** The run as its world knows it, if that lives. The store is behind: its losses are older than those in the chart. */
function live(run: StoredRun, worlds: World[]): StoredRun {
  if (run.outcome !== "running") return run;
  const world = worlds.find((one) => one.name === run.world);
  const known = [world?.run, ...(world?.runs ?? [])].find((one) => one?.number === run.number);
  if (known == null) return run;
  const { outcome, elapsed } = known;
  return { ...run, outcome, ending: outcome, elapsed: elapsed ?? elapsedOf(run), losses: [] };
}
