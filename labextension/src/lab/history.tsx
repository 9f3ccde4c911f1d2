/** The list of the newest stored runs, and of those that a search finds. A click shows a run in the Runs tab. */

import { refreshIcon } from "@jupyterlab/ui-components";
import { type JSX, useCallback, useEffect, useMemo, useState } from "react";
import { clock, number } from "../format";
import { h } from "./jsx";
import type { StoredRun, World } from "./messages";
import { ALL, RunsClient, elapsedOf, endingOfStored, labelOf } from "./runs/client";
import { Tool, type SectionProps } from "./section";

/** Runs that the list shows; the tab has all. */
const SHOWN = 20;

/** Milliseconds within which a steward stores what its ranks report. */
const STORED = 1500;

/** Milliseconds after which a list with a running run is read again. */
const FOLLOWED = 5000;

/** Milliseconds without a key after which a search begins. */
const TYPED = 300;

export default function History({
  actions,
  trans,
  changed,
}: SectionProps & { /** Changes whenever a run begins or ends, to reload the list. */ changed: string }): JSX.Element {
  const client = useMemo(() => new RunsClient(actions.worlds.settings), [actions]);
  const [search, setSearch] = useState("");
  const [runs, setRuns] = useState<StoredRun[] | null>(null);
  const [total, setTotal] = useState(0);
  const [problem, setProblem] = useState("");
  const load = useCallback(async (): Promise<void> => {
    try {
      const found = await client.list({ ...ALL, search }, SHOWN);
      setRuns(found.runs);
      setTotal(found.total);
      setProblem("");
    } catch (error) {
      setProblem((error as Error).message);
    }
  }, [client, search]);
  useLater(load, search === "" ? 0 : TYPED, [load]);
  useLater(load, STORED, [load, changed]);
  const goesOn = runs?.some((run) => run.outcome === "running") === true;
  useEffect(() => {
    if (!goesOn) return;
    const timer = setInterval(() => {
      if (!document.hidden) void load();
    }, FOLLOWED);
    return () => {
      clearInterval(timer);
    };
  }, [load, goesOn]);
  const open = (run?: StoredRun): void => {
    void actions.openRuns(run === undefined ? undefined : [run.id]);
  };
  return (
    <div className="dtrain-history">
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
          <Tool icon={refreshIcon} label={trans.__("Refresh")} run={() => void load()} />
        </span>
      </h4>
      {(total > 0 || search !== "") && (
        <input
          type="search"
          className="jp-mod-styled dtrain-search"
          placeholder={trans.__("Search names, notes, tags and code")}
          aria-label={trans.__("Search runs")}
          value={search}
          onChange={(event) => {
            setSearch(event.target.value);
          }}
        />
      )}
      {problem !== "" && <p className="dtrain-trouble">{problem}</p>}
      {runs?.length === 0 && (
        <p className="dtrain-quiet">{search !== "" ? trans.__("No run matches.") : trans.__("No runs yet.")}</p>
      )}
      <ul aria-label={trans.__("Earlier runs")}>
        {runs?.map((run) => (
          <li key={run.id}>
            <Row run={live(run, actions.worlds.worlds)} trans={trans} open={open} />
          </li>
        ))}
      </ul>
      {runs !== null && runs.length < total && (
        <p className="dtrain-quiet">{trans.__("Showing %1 of %2. See all in the Runs tab.", runs.length, total)}</p>
      )}
    </div>
  );
}

/** Do it so many milliseconds after `causes` have changed. */
function useLater(task: () => Promise<void>, delay: number, causes: unknown[]): void {
  useEffect(() => {
    const timer = setTimeout(() => void task(), delay);
    return () => {
      clearTimeout(timer);
    };
  }, causes);
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
