/** The list of stored runs: select one to see the curves that its cell showed, or two to compare them in one chart. */

import { refreshIcon } from "@jupyterlab/ui-components";
import { type JSX, useCallback, useEffect, useState } from "react";
import { readDocument } from "../runDocument";
import { RunModel, type Metric } from "../model";
import { clock } from "../format";
import { compare } from "./compare";
import { h } from "./jsx";
import type { StoredRun } from "./messages";
import { Tool, type SectionProps } from "./section";
import { Curves, Overlay } from "./curves";

export function History({
  actions,
  trans,
  ended,
}: SectionProps & { /** Changes whenever a run ends, to reload the list. */ ended: string }): JSX.Element {
  const [runs, setRuns] = useState<StoredRun[] | null>(null);
  const [problem, setProblem] = useState("");
  const [chosen, setChosen] = useState<number[]>([]);
  const [models, setModels] = useState<[number, RunModel][]>([]);
  const load = useCallback(async () => {
    try {
      setRuns(await actions.worlds.stored());
      setProblem("");
    } catch (error) {
      setProblem((error as Error).message);
    }
  }, [actions]);
  useEffect(() => {
    // The steward stores a run about a second after its end.
    const timer = setTimeout(() => void load(), 1500);
    return () => {
      clearTimeout(timer);
    };
  }, [load, ended]);
  useEffect(() => {
    let current = true;
    const loading = chosen.map(async (id): Promise<[number, RunModel]> => {
      const model = new RunModel();
      model.load(readDocument((await actions.worlds.storedRun(id)).document));
      return [id, model];
    });
    Promise.all(loading).then(
      (found) => {
        if (current) setModels(found);
      },
      (error: unknown) => {
        if (current) setProblem((error as Error).message);
      },
    );
    return () => {
      current = false;
    };
  }, [actions, chosen]);
  const choose = (id: number): void => {
    setChosen((before) => (before.includes(id) ? before.filter((one) => one !== id) : [...before, id].slice(-2)));
  };
  return (
    <div className="dtrain-history">
      <h4>
        {trans.__("Earlier runs")}
        <Tool icon={refreshIcon} label={trans.__("Refresh")} run={() => void load()} />
      </h4>
      {problem !== "" && <p className="dtrain-trouble">{problem}</p>}
      {runs?.length === 0 && <p className="dtrain-quiet">{trans.__("No runs yet.")}</p>}
      <ul aria-label={trans.__("Earlier runs")}>
        {(runs ?? []).map((run) => (
          <li key={run.id}>
            <label title={run.source}>
              <input
                type="checkbox"
                checked={chosen.includes(run.id)}
                onChange={() => {
                  choose(run.id);
                }}
              />
              <span>#{run.id}</span>
              <span className="dtrain-ellipsis">{firstLine(run.source)}</span>
              <span data-outcome={run.outcome}>{run.outcome}</span>
              <span>{clock(run.elapsed)}</span>
            </label>
          </li>
        ))}
      </ul>
      <Chosen
        models={models}
        none={trans.__("These runs have no metric in common.")}
        empty={trans.__("This run logged no metrics.")}
      />
    </div>
  );
}

function Chosen({
  models,
  none,
  empty,
}: {
  models: [number, RunModel][];
  none: string;
  empty: string;
}): JSX.Element | null {
  const [shown, setShown] = useState<{ metrics: Metric[]; names: string[] } | null>(null);
  useEffect(() => {
    setShown(models.length === 2 ? compare(models) : null);
  }, [models]);
  const [first] = models;
  if (first === undefined) return null;
  if (models.length === 1)
    return first[1].metrics.size === 0 ? <p className="dtrain-quiet">{empty}</p> : <Curves run={first[1]} />;
  if (shown === null) return null;
  if (shown.metrics.length === 0) return <p className="dtrain-quiet">{none}</p>;
  return <Overlay metrics={shown.metrics} names={shown.names} />;
}

function firstLine(source: string): string {
  const lines = source.split("\n").map((line) => line.trim());
  return lines.find((line) => line !== "" && !line.startsWith("#")) ?? lines[0] ?? "";
}
