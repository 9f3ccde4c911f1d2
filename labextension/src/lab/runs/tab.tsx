/** The contents of the "Runs" tab: filters, the table of stored runs, and the charts of those that are chosen in it. */

import "../../../style/runs.css";

import { ReactWidget } from "@jupyterlab/apputils";
import { closeIcon, refreshIcon } from "@jupyterlab/ui-components";
import { type JSX, useEffect, useMemo, useRef, useState } from "react";
import { OUTCOMES } from "../../generated";
import { outcomeWords } from "../../outcome";
import { onThemeChange, themeOf, type Theme } from "../../theme";
import { MAGIC } from "../cellTarget";
import { h } from "../jsx";
import type { StoredRun } from "../messages";
import { Tool, type SectionProps } from "../section";
import { Charts } from "./charts";
import { ALL, RunsClient, labelOf, type Changes, type Filters } from "./client";
import type { Chosen } from "./figures";
import { fileName, save } from "./files";
import { useColumns, useRunList } from "./list";
import { NEWEST } from "./sorting";
import { RunTable } from "./table";

/** Runs with losses that are in the charts at first. */
const AT_FIRST = 3;

const NONE: readonly number[] = [];

/** The part of the tab that the rest of the page speaks with. */
export interface Remembered {
  /** The runs that were chosen before the page was reloaded; null if the tab is new. */
  chosen: readonly number[] | null;
  remember: (chosen: number[]) => void;
}

/** Takes the runs that a person wants to see in the charts. */
type Asked = (ids: readonly number[]) => void;

export class RunsTab extends ReactWidget {
  constructor(
    private shared: SectionProps,
    private remembered: Remembered,
  ) {
    super();
    this.addClass("dtrain-panel");
    this.addClass("dtrain-runs");
  }

  private asked: Asked = () => undefined;

  /** Show these runs in the charts, beside those that are there. */
  choose(ids: readonly number[]): void {
    this.asked(ids);
  }

  protected override render(): JSX.Element {
    return (
      <Contents
        {...this.shared}
        {...this.remembered}
        node={this.node}
        hear={(asked) => {
          this.asked = asked;
        }}
        visible={() => this.isVisible && !document.hidden}
      />
    );
  }
}

function Contents(
  props: SectionProps & Remembered & { node: HTMLElement; hear: (asked: Asked) => void; visible: () => boolean },
): JSX.Element {
  const { actions, trans, remember, visible } = props;
  const { worlds } = actions;
  const client = useMemo(() => new RunsClient(worlds.settings), [worlds]);
  const theme = useTheme(props.node);
  const [filters, setFilters] = useState<Filters>(ALL);
  const [order, setOrder] = useState(NEWEST);
  const list = useRunList(client, filters, worlds, visible);
  const [asked, setAsked] = useState<readonly number[] | null>(props.chosen);
  useEffect(() => {
    // A new tab shows something at once.
    if (asked !== null || !list.loaded) return;
    const first = list.runs.filter((run) => run.losses.length > 0).slice(0, AT_FIRST);
    const shown = first.length > 0 ? first : list.runs.slice(0, 1);
    setAsked(shown.map((run) => run.id));
  }, [asked, list.loaded, list.runs]);
  const ids = asked ?? NONE;
  const known = useKnown(client, list.runs, ids);
  const { columns, problem } = useColumns(client, ids, (id) => known.get(id)?.outcome ?? "", visible);
  const change = (next: Iterable<number>): void => {
    const each = [...new Set(next)];
    setAsked(each);
    remember(each);
  };
  const { hear } = props;
  useEffect(() => {
    hear((more) => {
      change([...ids, ...more]);
    });
  });
  const edit = async (id: number, changes: Changes): Promise<void> => {
    await actions.attempt(async () => {
      list.replace(id, await client.edit(id, changes));
    });
  };
  const remove = async (run: StoredRun): Promise<void> => {
    const title = trans.__("Delete run %1?", labelOf(run));
    const body = trans.__("This removes its cell, output and metrics from the store for good.");
    if (!(await actions.confirm(title, body, trans.__("Delete")))) return;
    if (!(await actions.attempt(() => client.remove(run.id)))) return;
    list.replace(run.id, null);
    if (ids.includes(run.id)) change(ids.filter((id) => id !== run.id));
  };
  const download = (run: StoredRun): void => {
    void actions.attempt(async () => {
      const text = await client.csv(run.id);
      save(fileName(`${run.world}-${run.number}`, "csv"), new Blob([text], { type: "text/csv" }));
    });
  };
  const choose = (id: number): void => {
    change(ids.includes(id) ? ids.filter((one) => one !== id) : [...ids, id]);
  };
  const runs = useMemo(
    () =>
      ids.flatMap((id): Chosen[] => {
        const found = columns.get(id);
        const run = known.get(id);
        if (found === undefined || run === undefined) return [];
        return [{ id, columns: found, label: `${labelOf(run)} ${run.name}`.trim() }];
      }),
    [ids, columns, known],
  );
  const filtered = Object.values(filters).some((value) => value !== "");
  return (
    <div className="dtrain-runs-page" role="region" aria-label={trans.__("Runs")}>
      <FilterBar
        {...{ filters, setFilters, trans }}
        worlds={useWorldNames(list.runs)}
        reload={() => void list.reload()}
      />
      {[list.problem, problem].map(
        (words, index) =>
          words !== "" && (
            <p key={index} className="dtrain-trouble" role="alert">
              {words}
            </p>
          ),
      )}
      <div className="dtrain-runs-list" tabIndex={-1}>
        {list.runs.length > 0 && (
          <RunTable
            runs={list.runs}
            actions={{
              choose,
              edit,
              download,
              remove: (run) => void remove(run),
              only: (tag) => {
                setFilters({ ...filters, tag });
              },
            }}
            chosen={new Set(ids)}
            {...{ theme, trans, order, setOrder }}
          />
        )}
        {list.loaded && list.runs.length === 0 && (
          <p className="dtrain-quiet">
            {filtered
              ? trans.__("No run matches.")
              : trans.__("No runs yet. Each %1 cell is one: its losses and what its ranks use come here.", MAGIC)}
          </p>
        )}
      </div>
      <p className="dtrain-runs-count" role="status">
        {list.loaded && list.runs.length > 0 && trans.__("%1 of %2 runs", list.runs.length, list.total)}
        {ids.length > 0 && ` · ${trans.__("%1 in the charts", ids.length)}`}
        {list.runs.length < list.total && (
          <button type="button" onClick={() => void list.more()}>
            {trans.__("Load more")}
          </button>
        )}
        {ids.length > 0 && (
          <button
            type="button"
            onClick={() => {
              change([]);
            }}
          >
            {trans.__("Clear selection")}
          </button>
        )}
      </p>
      <div className="dtrain-run dtrain-runs-charts">
        {runs.length > 0 ? (
          <Charts attempt={(task) => actions.attempt(task)} {...{ runs, theme, trans }} />
        ) : (
          list.runs.length > 0 &&
          (ids.length > 0 ? (
            <p className="dtrain-quiet">{trans.__("Loading…")}</p>
          ) : (
            <p className="dtrain-quiet">
              {trans.__("Choose runs in the table to see their charts, one chart a metric.")}
            </p>
          ))
        )}
      </div>
    </div>
  );
}

function FilterBar(props: {
  filters: Filters;
  setFilters: (filters: Filters) => void;
  worlds: readonly string[];
  reload: () => void;
  trans: SectionProps["trans"];
}): JSX.Element {
  const { filters, setFilters, trans } = props;
  const select = (name: "world" | "outcome", label: string, all: string, values: readonly string[]): JSX.Element => (
    <select
      aria-label={label}
      value={filters[name]}
      onChange={(event) => {
        setFilters({ ...filters, [name]: event.target.value });
      }}
    >
      <option value="">{all}</option>
      {values.map((value) => (
        <option key={value} value={value}>
          {name === "outcome" ? outcomeWords(value) : value}
        </option>
      ))}
    </select>
  );
  return (
    <div className="dtrain-runs-filters" role="search" aria-label={trans.__("Stored runs")}>
      <input
        type="search"
        placeholder={trans.__("Search names, notes, tags and code")}
        aria-label={trans.__("Search runs")}
        value={filters.search}
        onChange={(event) => {
          setFilters({ ...filters, search: event.target.value });
        }}
      />
      {select("world", trans.__("World"), trans.__("All worlds"), props.worlds)}
      {select("outcome", trans.__("Outcome"), trans.__("All outcomes"), Object.keys(OUTCOMES))}
      {filters.tag !== "" && (
        <span className="dtrain-runs-tag">
          {filters.tag}
          <Tool
            icon={closeIcon}
            label={trans.__("List runs with any tag")}
            run={() => {
              setFilters({ ...filters, tag: "" });
            }}
          />
        </span>
      )}
      <Tool icon={refreshIcon} label={trans.__("Refresh")} run={props.reload} />
    </div>
  );
}

/** The names of all worlds that were seen: a filter must not take the others out of its own list. */
function useWorldNames(runs: readonly StoredRun[]): string[] {
  const seen = useRef(new Set<string>());
  for (const run of runs) seen.current.add(run.world);
  return [...seen.current].sort();
}

/** Every run that was seen, also those that the filters hide now. The chosen are asked for one by one if need be. */
function useKnown(
  client: RunsClient,
  runs: readonly StoredRun[],
  chosen: readonly number[],
): ReadonlyMap<number, StoredRun> {
  const [found, setFound] = useState<ReadonlyMap<number, StoredRun>>(new Map());
  const asked = useRef(new Set<number>());
  useEffect(() => {
    for (const id of chosen) {
      if (asked.current.has(id) || found.has(id)) continue;
      asked.current.add(id);
      client.find(id).then(
        (run) => {
          if (run !== null) setFound((all) => new Map([[id, run], ...all]));
        },
        () => undefined, // the list has the same trouble, and tells it
      );
    }
  }, [chosen.join()]);
  useEffect(() => {
    setFound((all) => new Map([...all, ...runs.map((run) => [run.id, run] as const)]));
  }, [runs]);
  return found;
}

/** The page's theme, also after it has changed. */
function useTheme(node: HTMLElement): Theme {
  const [theme, setTheme] = useState(() => themeOf(node));
  useEffect(() => {
    let later = 0;
    const look = (): void => {
      setTheme(themeOf(node));
    };
    const end = onThemeChange(() => {
      look();
      clearTimeout(later);
      // The theme's style sheets may still be loading.
      later = window.setTimeout(look, 500);
    });
    look();
    return () => {
      end();
      clearTimeout(later);
    };
  }, [node]);
  return theme;
}
