/**
 * The tab's data as React hooks: the list of runs, and the columns of the chosen ones.
 *
 * Both follow the store: the list asks again and again whether anything has changed, whoever changed it, and runs that go
 * on are asked for their new points.
 */

import { useCallback, useEffect, useRef, useState } from "react";
import { RequestError } from "../connection";
import type { RunColumns, RunListing, StoredRun, TableView } from "../messages";
import type { Worlds } from "../worlds";
import { MOST, type RunsClient } from "./client";
import { isAsked, usualColumns } from "./columns";

/** Runs that the list shows at first, and so many more when a person asks for them. */
export const PAGE = 30;
const MORE = 200;

/** Milliseconds between two questions whether the store has changed. */
const PERIOD = 2000;

/** Milliseconds without a key after which a filter is sent. */
const TYPED = 100;

/** The steward stores the end of a run about a second after it. */
const SETTLED = 1500;

/** Points of each column; of a run that goes on fewer, since it is asked for again and again. */
const POINTS = 2000;
const POINTS_LIVE = 1000;

const NOTHING: RunListing = {
  version: "",
  same: false,
  runs: [],
  total: 0,
  trainings: 0,
  all: 0,
  columns: [],
  groups: [],
  configs: [],
  metrics: [],
  views: [],
  hint: "",
};

/** What is wrong with the filter, and where in its text. */
export interface Wrong {
  words: string;
  place: { position: number; length: number } | null;
}

export interface RunList {
  listing: RunListing;
  /** The columns of the table after the name: those of the view, or the usual ones. */
  columns: readonly string[];
  /** Those of them whose values the runs have, in the order of these. */
  asked: readonly string[];
  /** Whether an answer has come. */
  loaded: boolean;
  /** Why there is no newer answer; empty if there is. */
  problem: string;
  /** Why the server could not read the filter; null if it could. The list is that of the filter before. */
  wrong: Wrong | null;
  more: () => void;
  /** Ask now. */
  reload: () => Promise<void>;
  /** Show a run as the server has changed it; null in place of one that is gone. */
  replace: (id: number, run: StoredRun | null) => void;
}

/** The runs of a view, `first` of them until a person asks for more. `fixed`: it shows no columns, and needs no values. */
export function useRunList(
  client: RunsClient,
  view: TableView,
  worlds: Worlds,
  visible: () => boolean,
  { first = PAGE, fixed = false }: { first?: number; fixed?: boolean } = {},
): RunList {
  const [found, setFound] = useState<Pick<RunList, "listing" | "columns" | "asked" | "loaded">>({
    ...{ listing: NOTHING, columns: [], asked: [], loaded: false },
  });
  const [problem, setProblem] = useState("");
  const [wrong, setWrong] = useState<Wrong | null>(null);
  const wanted = useRef(first);
  const shown = useRef(found);
  shown.current = found;
  const requests = useRef(0);
  const waits = useRef(0);
  /** The version of the store that the page has; empty if what it shows is not of the view or of that version. */
  const version = useRef("");

  const load = useCallback(
    async (force: boolean): Promise<void> => {
      // On a slow server, one question whether anything has changed is enough.
      if (!force && waits.current > 0) return;
      waits.current += 1;
      requests.current += 1;
      const mine = requests.current;
      const ask = (columns: readonly string[], unless: string): Promise<RunListing> =>
        client.list({ ...view, columns: columns.filter(isAsked) }, { limit: wanted.current }, unless);
      const own = view.columns.length > 0 || fixed;
      let columns: readonly string[] = own ? view.columns : shown.current.columns;
      try {
        let listing = await ask(columns, force ? "" : version.current);
        if (mine !== requests.current) return;
        setProblem("");
        if (listing.same) return;
        const usual = own ? columns : usualColumns(listing.configs, listing.metrics);
        if (usual.join() !== columns.join()) {
          columns = usual;
          listing = await ask(columns, "");
          if (mine !== requests.current) return;
        }
        version.current = listing.version;
        const before = new Map(shown.current.listing.runs.map((run) => [run.id, run]));
        // Rows of runs that are as they were need not be drawn again.
        const runs = listing.runs.map((run) => {
          const old = before.get(run.id);
          return old !== undefined && run.outcome !== "running" && alike(old, run) ? old : run;
        });
        setFound({ listing: { ...listing, runs }, columns, asked: columns.filter(isAsked), loaded: true });
        setWrong(null);
      } catch (error) {
        if (mine !== requests.current) return;
        const { message } = error as Error;
        if (error instanceof RequestError && error.option === "where") {
          setWrong({ words: message, place: error.place });
          setProblem("");
        } else setProblem(message);
      } finally {
        waits.current -= 1;
      }
    },
    [client, view, fixed],
  );
  const reload = useCallback(() => load(true), [load]);

  const more = (): void => {
    wanted.current = Math.min(MOST, wanted.current + MORE);
    void reload();
  };

  const replace = (id: number, run: StoredRun | null): void => {
    // An answer that is on its way may be older than the change.
    requests.current += 1;
    version.current = "";
    setFound(({ listing, ...rest }) => ({
      ...rest,
      listing: {
        ...listing,
        // The answer to a change has no values of columns.
        runs: listing.runs.flatMap((one) =>
          one.id !== id ? [one] : run === null ? [] : [{ ...run, values: one.values, place: one.place }],
        ),
        total: listing.total - (run === null ? 1 : 0),
      },
    }));
  };

  const typed = useRef(view.where);
  useEffect(() => {
    const keys = typed.current !== view.where;
    typed.current = view.where;
    version.current = "";
    wanted.current = Math.max(first, Math.min(wanted.current, shown.current.listing.runs.length));
    // Not at every letter of a filter.
    const timer = setTimeout(() => void load(true), keys ? TYPED : 0);
    return () => {
      clearTimeout(timer);
    };
  }, [load, first]);

  useEffect(() => {
    const timer = setInterval(() => {
      // A filter that is wrong stays so, and the list is that of another.
      if (visible()) void load(false);
    }, PERIOD);
    return () => {
      clearInterval(timer);
    };
  }, [load, visible]);

  useEffect(() => {
    let last = signature(worlds);
    let timer = 0;
    const changed = (): void => {
      const now = signature(worlds);
      if (now === last) return;
      last = now;
      clearTimeout(timer);
      timer = window.setTimeout(() => void load(false), SETTLED);
    };
    worlds.changed.connect(changed);
    return () => {
      worlds.changed.disconnect(changed);
      clearTimeout(timer);
    };
  }, [worlds, load]);

  return { ...found, problem, wrong, more, reload, replace };
}

/** Whether two answers about a run say the same. */
function alike(one: StoredRun, other: StoredRun): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Changes whenever a run of any world begins or ends. */
function signature(worlds: Worlds): string {
  return worlds.worlds
    .map((world) => `${world.id}:${world.run?.number ?? 0}:${world.run?.outcome ?? ""}:${world.runs.length}`)
    .join();
}

/** The columns of the runs `ids`, as they come; `outcome` tells whether a run still goes on. */
export function useColumns(
  client: RunsClient,
  ids: readonly number[],
  outcome: (id: number) => string,
  visible: () => boolean,
): { columns: ReadonlyMap<number, RunColumns>; problem: string } {
  const [columns, setColumns] = useState<ReadonlyMap<number, RunColumns>>(new Map());
  const [problem, setProblem] = useState("");
  /** Each run's outcome when its columns were asked for: those of a run that went on are not all. */
  const asked = useRef(new Map<number, string>());
  const wanted = useRef<readonly number[]>(ids);
  wanted.current = ids;
  const look = useRef(outcome);
  look.current = outcome;

  const load = useCallback(
    async (id: number): Promise<void> => {
      const before = asked.current.get(id);
      const now = look.current(id);
      asked.current.set(id, now);
      try {
        const found = await client.columns(id, now === "running" ? POINTS_LIVE : POINTS);
        if (wanted.current.includes(id)) setColumns((all) => new Map(all).set(id, found));
        setProblem("");
      } catch (error) {
        if (before === undefined) asked.current.delete(id);
        else asked.current.set(id, before);
        if (wanted.current.includes(id)) setProblem((error as Error).message);
      }
    },
    [client],
  );

  const key = ids.join();
  useEffect(() => {
    setColumns((all) => new Map([...all].filter(([id]) => wanted.current.includes(id))));
    for (const id of [...asked.current.keys()]) if (!wanted.current.includes(id)) asked.current.delete(id);
    for (const id of wanted.current) if (!asked.current.has(id)) void load(id);
    const timer = setInterval(() => {
      if (!visible()) return;
      for (const id of wanted.current) if ((asked.current.get(id) ?? "running") === "running") void load(id);
    }, PERIOD);
    return () => {
      clearInterval(timer);
    };
  }, [key, load, visible]);

  return { columns, problem };
}
