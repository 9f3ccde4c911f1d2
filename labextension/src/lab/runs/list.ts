/** The tab's data as React hooks: the list of runs, and the columns of the chosen ones. Those that go on are asked for again. */

import { useCallback, useEffect, useRef, useState } from "react";
import type { RunColumns, StoredRun } from "../messages";
import type { Worlds } from "../worlds";
import type { Filters, RunsClient } from "./client";

/** Runs in one request for the list; the server gives at most MOST. */
const PAGE = 50;
const MOST = 200;

/** Milliseconds between two requests for what runs. */
const PERIOD = 3000;

/** The steward stores the end of a run about a second after it. */
const SETTLED = 1500;

/** Points of each column; of a run that goes on fewer, since it is asked for again and again. */
const POINTS = 2000;
const POINTS_LIVE = 1000;

export interface RunList {
  runs: StoredRun[];
  total: number;
  /** Whether an answer has come. */
  loaded: boolean;
  problem: string;
  more: () => Promise<void>;
  reload: () => Promise<void>;
  /** Show a run as the server has changed it; null in place of one that is gone. */
  replace: (id: number, run: StoredRun | null) => void;
}

export function useRunList(client: RunsClient, filters: Filters, worlds: Worlds, visible: () => boolean): RunList {
  const [found, setFound] = useState<{ runs: StoredRun[]; total: number; loaded: boolean }>({
    runs: [],
    total: 0,
    loaded: false,
  });
  const [problem, setProblem] = useState("");
  const shown = useRef(found.runs);
  shown.current = found.runs;
  const asked = useRef(0);

  const load = useCallback(
    async (fresh: boolean): Promise<void> => {
      asked.current += 1;
      const mine = asked.current;
      const limit = fresh ? PAGE : Math.min(MOST, Math.max(PAGE, shown.current.length));
      try {
        const { runs, total } = await client.list(filters, limit);
        if (mine !== asked.current) return;
        const oldest = runs.at(-1)?.id ?? 0;
        // Pages that were loaded before stay below those that have come now.
        const older = fresh || runs.length < limit ? [] : shown.current.filter((run) => run.id < oldest);
        setFound({ runs: [...runs, ...older], total, loaded: true });
        setProblem("");
      } catch (error) {
        if (mine === asked.current) setProblem((error as Error).message);
      }
    },
    [client, filters],
  );
  const reload = useCallback(() => load(false), [load]);

  const more = async (): Promise<void> => {
    const before = shown.current.at(-1)?.id;
    asked.current += 1;
    const mine = asked.current;
    try {
      const { runs, total } = await client.list(filters, PAGE, before);
      if (mine !== asked.current) return;
      setFound({ runs: [...shown.current, ...runs], total: Math.max(total, shown.current.length), loaded: true });
    } catch (error) {
      setProblem((error as Error).message);
    }
  };

  const replace = (id: number, run: StoredRun | null): void => {
    // An answer that is on its way may be older than the change.
    asked.current += 1;
    setFound(({ runs, total, loaded }) => ({
      runs: run === null ? runs.filter((one) => one.id !== id) : runs.map((one) => (one.id === id ? run : one)),
      total: run === null ? total - 1 : total,
      loaded,
    }));
  };

  useEffect(() => {
    // Not at every letter of a search.
    const timer = setTimeout(() => void load(true), filters.search === "" ? 0 : 250);
    return () => {
      clearTimeout(timer);
    };
  }, [load, filters]);

  const running = found.runs.some((run) => run.outcome === "running");
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => {
      if (visible()) void reload();
    }, PERIOD);
    return () => {
      clearInterval(timer);
    };
  }, [running, reload, visible]);

  useEffect(() => {
    let last = signature(worlds);
    let timer = 0;
    const changed = (): void => {
      const now = signature(worlds);
      if (now === last) return;
      last = now;
      clearTimeout(timer);
      timer = window.setTimeout(() => void reload(), SETTLED);
    };
    worlds.changed.connect(changed);
    return () => {
      worlds.changed.disconnect(changed);
      clearTimeout(timer);
    };
  }, [worlds, reload]);

  return { ...found, problem, more, reload, replace };
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
