/**
 * The contents of the "Runs" tab: filter and columns, the table of stored runs, the charts of those that are chosen in
 * it and what differs between them; or the page of one run.
 */

import "../../../style/runs.css";

import { ReactWidget } from "@jupyterlab/apputils";
import { type JSX, type ReactNode, memo, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { onThemeChange, themeOf, type Theme } from "../../theme";
import { MAGIC } from "../cellTarget";
import { h } from "../jsx";
import type { StoredRun, TableView } from "../messages";
import type { SectionProps } from "../section";
import { Bar } from "./bar";
import { Charts } from "./charts";
import { MOST, RunsClient, labelOf, type Changes, type ReportFormat } from "./client";
import { toggled, conditionOf, conditionsOf } from "./conditions";
import { Differences } from "./differences";
import type { Chosen } from "./figures";
import { fileName, save } from "./files";
import { useColumns, useRunList, type RunList } from "./list";
import { RunPage } from "./page";
import { Parallel } from "./parallel";
import { Popover } from "./popover";
import { RunTable } from "./table";

/** Runs with losses that are in the charts at first. */
const AT_FIRST = 3;

/** The most runs whose curves are in the charts: each is a request and many lines. */
const IN_CHARTS = 100;

/** What of the tab comes back when the page is reloaded. */
export interface Shown {
  /** The runs in the charts; null if nobody has chosen any yet. */
  chosen: readonly number[] | null;
  view: TableView;
  /** The run whose page is open; null for the list. */
  page: number | null;
}

/** The part of the tab that the rest of the page speaks with. */
export interface Remembered {
  shown: Shown;
  remember: (shown: Shown) => void;
}

/** What a person wants to see: runs beside those in the charts, or the page of one. */
export interface Asked {
  chosen: readonly number[];
  page: number | null;
}

type Hear = (asked: Asked) => void;

export class RunsTab extends ReactWidget {
  constructor(
    private shared: SectionProps,
    private remembered: Remembered,
  ) {
    super();
    this.addClass("dtrain-panel");
    this.addClass("dtrain-runs");
  }

  private heard: Hear = () => undefined;

  /** Show this beside what the tab shows. */
  ask(asked: Asked): void {
    this.heard(asked);
  }

  protected override render(): JSX.Element {
    return (
      <Contents
        {...this.shared}
        {...this.remembered}
        node={this.node}
        hear={(asked) => {
          this.heard = asked;
        }}
        visible={() => this.isVisible && !document.hidden}
      />
    );
  }
}

const NONE: readonly number[] = [];

/** What is shown beside the curves of the chosen runs. */
type Beside = "differences" | "parallel" | null;

function Contents(
  props: SectionProps & Remembered & { node: HTMLElement; hear: (asked: Hear) => void; visible: () => boolean },
): JSX.Element {
  const { actions, trans, remember, visible, node, hear } = props;
  const { worlds } = actions;
  const client = useMemo(() => new RunsClient(worlds.settings), [worlds]);
  const theme = useTheme(node);
  const [shown, setShown] = useState<Shown>(props.shown);
  const [beside, setBeside] = useState<Beside>(null);
  const { view } = shown;
  const list = useRunList(client, view, worlds, visible);
  const { listing } = list;
  const ids = shown.chosen ?? NONE;
  const change = (more: Partial<Shown>): void => {
    const next = { ...shown, ...more };
    setShown(next);
    remember(next);
  };
  const choose = (next: Iterable<number>): void => {
    change({ chosen: [...new Set(next)].slice(-IN_CHARTS) });
  };
  useEffect(() => {
    // A new tab shows something at once. Nobody has chosen it, so that the next tab has what is new then.
    if (shown.chosen !== null || !list.loaded) return;
    const first = listing.runs.filter((run) => run.losses.length > 0).slice(0, AT_FIRST);
    const some = first.length > 0 ? first : listing.runs.slice(0, 1);
    if (some.length > 0) setShown({ ...shown, chosen: some.map((run) => run.id) });
  }, [shown, list.loaded, listing.runs]);
  const known = useKnown(client, listing, ids, (gone) => {
    choose(ids.filter((id) => !gone.includes(id)));
  });
  const { columns, problem } = useColumns(client, ids, (id) => known.get(id)?.outcome ?? "", visible);
  useEffect(() => {
    hear((asked) => {
      change({
        chosen: asked.chosen.length > 0 ? [...new Set([...ids, ...asked.chosen])] : shown.chosen,
        page: asked.page ?? (asked.chosen.length > 0 ? null : shown.page),
      });
    });
  });
  const open = (page: number | null): void => {
    node.scrollTop = 0;
    change({ page });
  };
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
    if (ids.includes(run.id)) choose(ids.filter((id) => id !== run.id));
  };
  const download = (run: StoredRun): void => {
    void actions.attempt(async () => {
      const text = await client.csv(run.id);
      save(fileName(`${run.world}-${run.number}`, "csv"), new Blob([text], { type: "text/csv" }));
    });
  };
  const labels = ids.map((id) => {
    const run = known.get(id);
    return run === undefined ? null : `${labelOf(run)} ${run.name}`.trim();
  });
  const runs = useMemo(
    () =>
      ids.flatMap((id, place): Chosen[] => {
        const found = columns.get(id);
        const label = labels[place];
        return found === undefined || label === null || label === undefined ? [] : [{ id, columns: found, label }];
      }),
    // Another order of the list changes no chart.
    [ids, columns, JSON.stringify(labels)],
  );
  const attempt = useCallback((task: () => Promise<unknown>): Promise<boolean> => actions.attempt(task), [actions]);
  const shared = { client, trans, theme, attempt };
  return (
    <div className="dtrain-runs-page" role="region" aria-label={trans.__("Runs")}>
      {shown.page !== null && (
        <RunPage
          key={shown.page}
          id={shown.page}
          open={open}
          changed={(run) => {
            list.replace(run.id, run);
          }}
          back={() => {
            open(null);
          }}
          {...shared}
        />
      )}
      {/* The list stays as it is, with its place and its charts, while a run's page is open. */}
      <div className="dtrain-runs-all" hidden={shown.page !== null}>
        <Bar
          setView={(next) => {
            change({ view: next });
          }}
          saveView={async (name) => {
            await actions.attempt(() => client.saveView({ ...view, name }));
            await list.reload();
          }}
          deleteView={async (name) => {
            await actions.attempt(() => client.deleteView(name));
            await list.reload();
          }}
          runs={known.values()}
          {...{ view, list, trans }}
        />
        {[...new Set([list.problem, problem])].map(
          (words) =>
            words !== "" && (
              <p key={words} className="dtrain-trouble" role="alert">
                {words}
              </p>
            ),
        )}
        <div className="dtrain-runs-list" tabIndex={-1} data-old={list.wrong !== null}>
          {listing.runs.length > 0 && (
            <RunTable
              chosen={new Set(ids)}
              sort={view.sort}
              setSort={(sort) => {
                change({ view: { ...view, sort } });
              }}
              actions={{
                choose: (some, on) => {
                  choose(on ? [...ids, ...some] : ids.filter((id) => !some.includes(id)));
                },
                open,
                edit,
                download,
                remove: (run) => void remove(run),
                only: (tag) => {
                  const condition = conditionOf("tag", tag);
                  if (conditionsOf(view.where).includes(condition)) return;
                  change({ view: { ...view, where: toggled(view.where, condition) } });
                },
              }}
              {...{ list, theme, trans }}
            />
          )}
          {list.loaded && listing.runs.length === 0 && <Empty {...{ view, list, trans }} />}
        </div>
        <Status
          {...{ view, list, trans }}
          inCharts={ids.length}
          clear={() => {
            choose([]);
          }}
        />
        {ids.length > 0 && (
          <Comparison
            {...{ ids, beside, setBeside, trans }}
            report={(format) => {
              void actions.attempt(async () => {
                const text = await client.report(ids, format);
                save(`runs.${format}`, new Blob([text], { type: REPORTS[format] }));
              });
            }}
          />
        )}
        <div className="dtrain-runs-beside" data-beside={beside !== null && ids.length > 0}>
          {ids.length > 0 && beside === "differences" && <Differences ids={ids} {...shared} />}
          {ids.length > 0 && beside === "parallel" && <Parallel ids={ids} choose={choose} {...shared} />}
          <div className="dtrain-run dtrain-runs-charts">
            {runs.length > 0 ? (
              <DrawnCharts {...{ runs, theme, trans, attempt }} />
            ) : (
              listing.runs.length > 0 && (
                <p className="dtrain-quiet">
                  {ids.length > 0
                    ? trans.__("Loading…")
                    : trans.__("Choose runs in the table to see their charts, one chart a metric.")}
                </p>
              )
            )}
          </div>
        </div>
      </div>
    </div>
  );
}

/** Charts are the most that the tab draws: only if something in them has changed. */
const DrawnCharts = memo(Charts);

const REPORTS: Record<ReportFormat, string> = { html: "text/html", md: "text/markdown", csv: "text/csv" };

/** Why the list is empty, and what to do. */
function Empty({ view, list, trans }: { view: TableView; list: RunList; trans: SectionProps["trans"] }): JSX.Element {
  const { all } = list.listing;
  let words = trans.__("No runs yet. Each %1 cell is one: its losses and what its ranks use come here.", MAGIC);
  if (view.where.trim() !== "") words = trans.__("No run matches.");
  else if (all > 0 && !view.everything) {
    words = trans._n(
      "No trainings yet. “All cells” lists %1 cell that logged no metric and was over in a few seconds.",
      "No trainings yet. “All cells” lists %1 cells that logged no metric and were over in a few seconds.",
      all,
    );
  }
  return <p className="dtrain-quiet">{words}</p>;
}

/** How many runs there are, and how many are left out and why. */
function Status(props: {
  view: TableView;
  list: RunList;
  inCharts: number;
  clear: () => void;
  trans: SectionProps["trans"];
}): JSX.Element {
  const { view, list, inCharts, clear, trans } = props;
  const { runs, total, trainings, all } = list.listing;
  const words: string[] = [];
  if (list.loaded && runs.length > 0) words.push(trans.__("%1 of %2 runs", runs.length, total));
  if (list.loaded && !view.everything && all > trainings) {
    words.push(trans._n("%1 other cell", "%1 other cells", all - trainings));
  }
  if (inCharts > 0) words.push(trans.__("%1 in the charts", inCharts));
  return (
    <div className="dtrain-runs-count">
      <span role="status">{words.join(" · ")}</span>
      {runs.length < Math.min(MOST, total) && (
        <button type="button" onClick={list.more}>
          {trans.__("Load more")}
        </button>
      )}
      {inCharts > 0 && (
        <button type="button" onClick={clear}>
          {trans.__("Clear selection")}
        </button>
      )}
    </div>
  );
}

/** What one can do with the chosen runs beside looking at their curves. */
function Comparison(props: {
  ids: readonly number[];
  beside: Beside;
  setBeside: (beside: Beside) => void;
  report: (format: ReportFormat) => void;
  trans: SectionProps["trans"];
}): JSX.Element {
  const { ids, beside, setBeside, report, trans } = props;
  const toggle = (which: Exclude<Beside, null>, words: string): JSX.Element => (
    <button
      type="button"
      className="dtrain-runs-button"
      aria-pressed={beside === which}
      disabled={ids.length < 2 && beside !== which}
      title={ids.length < 2 ? trans.__("Choose two or more runs") : ""}
      onClick={() => {
        setBeside(beside === which ? null : which);
      }}
    >
      {words}
    </button>
  );
  const formats: [ReportFormat, string][] = [
    ["html", trans.__("HTML, one file with charts")],
    ["md", trans.__("Markdown")],
    ["csv", trans.__("CSV, one row a run")],
  ];
  return (
    <div className="dtrain-runs-comparison" role="toolbar" aria-label={trans.__("Chosen runs")}>
      {toggle("differences", trans.__("What differs"))}
      {toggle("parallel", trans.__("Parallel coordinates"))}
      <Popover label={trans.__("Save a report on the chosen runs")} words={trans.__("Report")}>
        {(close): ReactNode => (
          <div className="dtrain-runs-conditions">
            {formats.map(([format, words]) => (
              <button
                key={format}
                type="button"
                className="dtrain-runs-button"
                onClick={() => {
                  report(format);
                  close();
                }}
              >
                {words}
              </button>
            ))}
          </div>
        )}
      </Popover>
    </div>
  );
}

/**
 * Every run that was seen, also those that the view leaves out now. The chosen ones among them are asked for whenever the
 * store has changed; `gone` gets those that are no longer kept.
 */
function useKnown(
  client: RunsClient,
  listing: RunList["listing"],
  chosen: readonly number[],
  gone: (ids: number[]) => void,
): ReadonlyMap<number, StoredRun> {
  const [found, setFound] = useState<ReadonlyMap<number, StoredRun>>(new Map());
  const lost = useRef(gone);
  lost.current = gone;
  useEffect(() => {
    setFound((all) => new Map([...all, ...listing.runs.map((run) => [run.id, run] as const)]));
  }, [listing.runs]);
  useEffect(() => {
    // The list answers first: most of the chosen runs are in it.
    if (listing.version === "") return undefined;
    const listed = new Set(listing.runs.map((run) => run.id));
    const missing = chosen.filter((id) => !listed.has(id));
    if (missing.length === 0) return undefined;
    let over = false;
    client.find(missing).then(
      (runs) => {
        if (over) return;
        setFound((all) => new Map([...all, ...runs.map((run) => [run.id, run] as const)]));
        const kept = new Set(runs.map((run) => run.id));
        const without = missing.filter((id) => !kept.has(id));
        if (without.length > 0) lost.current(without);
      },
      () => undefined, // the list has the same trouble, and tells it
    );
    return () => {
      over = true;
    };
  }, [chosen.join(), listing.version]);
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
