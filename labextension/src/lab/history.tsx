/** The list of stored runs: find them, name and tag them, and select some to see their curves in one chart. */

import { ellipsesIcon, refreshIcon } from "@jupyterlab/ui-components";
import { type JSX, useCallback, useEffect, useMemo, useState } from "react";
import { clock, number } from "../format";
import { OUTCOMES } from "../generated";
import { type Metric, RunModel } from "../model";
import { readDocument } from "../runDocument";
import { compare } from "./compare";
import { Curves, Overlay } from "./curves";
import { h } from "./jsx";
import type { StoredRun, World } from "./messages";
import { RunForm } from "./runForm";
import { ALL, type Filters, RunsClient } from "./runs/client";
import { Tool, type SectionProps } from "./section";

/** The command of the tab that shows runs in the main area. */
const TAB = "dtrain:runs";

const PAGE = 30;

/** Milliseconds within which a steward stores what its ranks report. */
const STORED = 1500;

/** Milliseconds after which a list with a running run is read again. */
const FOLLOWED = 5000;

/** Milliseconds without a key after which a search begins. */
const TYPED = 300;

type Sorting = "newest" | "name" | "best";

/** The name by which people call a run: `world/3`. */
export function labelOf(run: StoredRun): string {
  return `${run.world}/${run.number}`;
}

export function History({
  actions,
  trans,
  changed,
}: SectionProps & { /** Changes whenever a run begins or ends, to reload the list. */ changed: string }): JSX.Element {
  const client = useMemo(() => new RunsClient(actions.worlds.settings), [actions]);
  const [filters, setFilters] = useState<Filters>(ALL);
  const [sorting, setSorting] = useState<Sorting>("newest");
  const [shown, setShown] = useState(PAGE);
  const [runs, setRuns] = useState<StoredRun[] | null>(null);
  const [total, setTotal] = useState(0);
  const [names, setNames] = useState<string[]>([]);
  const [problem, setProblem] = useState("");
  const [chosen, setChosen] = useState<StoredRun[]>([]);
  const [edited, setEdited] = useState<number | null>(null);
  const load = useCallback(async (): Promise<void> => {
    try {
      const found = await client.list(filters, shown);
      setRuns(found.runs);
      setTotal(found.total);
      setNames((before) => [...new Set([...before, ...found.runs.map((run) => run.world)])].sort());
      setProblem("");
    } catch (error) {
      setProblem((error as Error).message);
    }
  }, [client, filters, shown]);
  useEffect(() => {
    const timer = setTimeout(() => void load(), filters.search === "" ? 0 : TYPED);
    return () => {
      clearTimeout(timer);
    };
  }, [load, filters]);
  useEffect(() => {
    const timer = setTimeout(() => void load(), STORED);
    return () => {
      clearTimeout(timer);
    };
  }, [load, changed]);
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
  const replace = (run: StoredRun): void => {
    setRuns((before) => before?.map((one) => (one.id === run.id ? run : one)) ?? null);
    setChosen((before) => before.map((one) => (one.id === run.id ? run : one)));
  };
  const remove = async (run: StoredRun): Promise<void> => {
    if (!(await actions.deleteRun(client, run))) return;
    setChosen((before) => before.filter((one) => one.id !== run.id));
    setEdited(null);
    await load();
  };
  const choose = (run: StoredRun): void => {
    setChosen((before) =>
      before.some((one) => one.id === run.id) ? before.filter((one) => one.id !== run.id) : [...before, run],
    );
  };
  const set = (changes: Partial<Filters>): void => {
    setShown(PAGE);
    setFilters({ ...filters, ...changes });
  };
  const rows = sorted(
    (runs ?? []).map((run) => live(run, actions.worlds.worlds)),
    sorting,
  );
  const narrowed = Object.values(filters).some((value) => value !== "");
  return (
    <div className="dtrain-history">
      <h4>
        {trans.__("Earlier runs")}
        <span className="dtrain-tools-row">
          {actions.commands.hasCommand(TAB) && (
            <button type="button" className="dtrain-small" onClick={() => void actions.commands.execute(TAB)}>
              {trans.__("Open the Runs tab")}
            </button>
          )}
          <Tool icon={refreshIcon} label={trans.__("Refresh")} run={() => void load()} />
        </span>
      </h4>
      <div className="dtrain-filters" role="search" aria-label={trans.__("Earlier runs")}>
        <input
          type="search"
          className="jp-mod-styled"
          placeholder={trans.__("Search")}
          aria-label={trans.__("Search in names, notes, tags and cells")}
          value={filters.search}
          onChange={(event) => {
            set({ search: event.target.value });
          }}
        />
        <Choice
          label={trans.__("World")}
          value={filters.world}
          choices={[["", trans.__("all worlds")], ...names.map((name): [string, string] => [name, name])]}
          set={(world) => {
            set({ world });
          }}
        />
        <Choice
          label={trans.__("Outcome")}
          value={filters.outcome}
          choices={[
            ["", trans.__("any outcome")],
            ...Object.keys(OUTCOMES).map((word): [string, string] => [word, word]),
          ]}
          set={(outcome) => {
            set({ outcome });
          }}
        />
        <Choice
          label={trans.__("Order")}
          value={sorting}
          choices={[
            ["newest", trans.__("newest first")],
            ["name", trans.__("by name")],
            ["best", trans.__("by best loss")],
          ]}
          set={(order) => {
            setSorting(order as Sorting);
          }}
        />
      </div>
      {problem !== "" && <p className="dtrain-trouble">{problem}</p>}
      {runs?.length === 0 && (
        <p className="dtrain-quiet">{narrowed ? trans.__("No run is like that.") : trans.__("No runs yet.")}</p>
      )}
      <ul aria-label={trans.__("Earlier runs")}>
        {rows.map((run) => (
          <li key={run.id}>
            <Row
              run={run}
              checked={chosen.some((one) => one.id === run.id)}
              open={edited === run.id}
              trans={trans}
              choose={() => {
                choose(run);
              }}
              edit={() => {
                setEdited(edited === run.id ? null : run.id);
              }}
            />
            {edited === run.id && (
              <RunForm
                run={run}
                trans={trans}
                save={async (changes) => {
                  replace(await client.edit(run.id, changes));
                  setEdited(null);
                }}
                close={() => {
                  setEdited(null);
                }}
                remove={() => void remove(run)}
              />
            )}
          </li>
        ))}
      </ul>
      {runs !== null && runs.length < total && (
        <p className="dtrain-quiet">
          {trans.__("%1 of %2 runs", runs.length, total)}{" "}
          <button
            type="button"
            className="dtrain-small"
            onClick={() => {
              setShown(Math.min(200, shown + 2 * PAGE));
            }}
            disabled={shown >= 200}
          >
            {trans.__("Show more")}
          </button>
        </p>
      )}
      <Chosen runs={chosen} actions={actions} trans={trans} drop={choose} />
    </div>
  );
}

function Choice(props: {
  label: string;
  value: string;
  choices: [value: string, words: string][];
  set: (value: string) => void;
}): JSX.Element {
  return (
    <select
      className="jp-mod-styled"
      aria-label={props.label}
      title={props.label}
      value={props.value}
      onChange={(event) => {
        props.set(event.target.value);
      }}
    >
      {props.choices.map(([value, words]) => (
        <option key={value} value={value}>
          {words}
        </option>
      ))}
    </select>
  );
}

function Row(props: {
  run: StoredRun;
  checked: boolean;
  open: boolean;
  trans: SectionProps["trans"];
  choose: () => void;
  edit: () => void;
}): JSX.Element {
  const { run, trans } = props;
  const loss = run.losses[0];
  const facts = [clock(run.elapsed)];
  if (loss !== undefined) facts.push(`${loss.name} ${loss.last === null ? "NaN" : number(loss.last)}`);
  if (run.kept) facts.push(trans.__("kept"));
  return (
    <div className="dtrain-stored">
      <label title={[run.note, run.source].filter((part) => part !== "").join("\n\n")}>
        <input type="checkbox" checked={props.checked} onChange={props.choose} />
        <span className="dtrain-stored-lines">
          <span className="dtrain-ellipsis">{run.name !== "" ? run.name : labelOf(run)}</span>
          <small>
            {labelOf(run)} ·{" "}
            <span data-outcome={run.outcome} title={OUTCOMES[run.outcome]}>
              {run.outcome}
            </span>
            {facts.map((fact) => ` · ${fact}`)}
            {run.tags.map((tag) => (
              <span key={tag} className="dtrain-tag">
                {tag}
              </span>
            ))}
          </small>
        </span>
      </label>
      <button
        type="button"
        className="dtrain-tool"
        title={trans.__("Edit %1", labelOf(run))}
        aria-label={trans.__("Edit %1", labelOf(run))}
        aria-expanded={props.open}
        onClick={props.edit}
      >
        <ellipsesIcon.react tag="span" width="14px" height="14px" />
      </button>
    </div>
  );
}

/** The curves of the chosen runs, below a legend. */
function Chosen({
  runs,
  actions,
  trans,
  drop,
}: SectionProps & { runs: StoredRun[]; drop: (run: StoredRun) => void }): JSX.Element | null {
  const [models, setModels] = useState<[number, RunModel][]>([]);
  const [problem, setProblem] = useState("");
  const [shown, setShown] = useState<{ metrics: Metric[]; names: string[] } | null>(null);
  const ids = runs.map((run) => run.id).join();
  const labels = runs.map(labelOf).join();
  useEffect(() => {
    let current = true;
    const loading = (ids === "" ? [] : ids.split(",")).map(async (id): Promise<[number, RunModel]> => {
      const model = new RunModel();
      model.load(readDocument((await actions.worlds.storedRun(Number(id))).document));
      return [Number(id), model];
    });
    Promise.all(loading).then(
      (found) => {
        if (!current) return;
        setModels(found);
        setProblem("");
      },
      (error: unknown) => {
        if (current) setProblem((error as Error).message);
      },
    );
    return () => {
      current = false;
    };
  }, [actions, ids]);
  useEffect(() => {
    setShown(
      models.length > 1
        ? compare(
            models.map(([, model]) => model),
            labels.split(","),
          )
        : null,
    );
  }, [models, labels]);
  const [first] = models;
  if (problem !== "") return <p className="dtrain-trouble">{problem}</p>;
  if (first === undefined || runs.length === 0) return null;
  if (runs.length === 1) {
    if (first[1].metrics.size > 0) return <Curves run={first[1]} />;
    return <p className="dtrain-quiet">{trans.__("This run logged no metrics.")}</p>;
  }
  // The runs that are loaded may not yet be those that are chosen.
  if (shown === null || models.length !== runs.length) return null;
  return (
    <Overlay
      {...shown}
      words={runs.map((run) => run.name)}
      none={trans.__("These runs have no metric in common.")}
      dropWords={(label) => trans.__("Leave out %1", label)}
      drop={(line) => {
        drop(runs[line]!);
      }}
    />
  );
}

/** The run as its world knows it, if that lives: the store is up to a second behind. */
function live(run: StoredRun, worlds: World[]): StoredRun {
  if (run.outcome !== "running") return run;
  const world = worlds.find((one) => one.name === run.world);
  const known = [world?.run, ...(world?.runs ?? [])].find((one) => one?.number === run.number);
  if (known == null) return run;
  const until = known.ended ?? Date.now() / 1000;
  return { ...run, outcome: known.outcome, elapsed: Math.max(0, until - known.started) };
}

function sorted(runs: StoredRun[], sorting: Sorting): StoredRun[] {
  if (sorting === "newest") return runs;
  const best = (run: StoredRun): number => run.losses[0]?.best ?? Infinity;
  return [...runs].sort((one, other) =>
    sorting === "name" ? one.name.localeCompare(other.name) : best(one) - best(other) || other.id - one.id,
  );
}
