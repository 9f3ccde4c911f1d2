/**
 * What a run has logged beside numbers: one card for each name, with a slider over its steps and a choice of ranks.
 *
 * The bytes of a thing are fetched when it is shown, with the page's credentials. Images and sound become blob
 * addresses of this page, text is inserted as text: nothing that a run has logged runs here. Something that cannot be
 * read says so in its place.
 */

import type { TranslationBundle } from "@jupyterlab/translation";
import { type JSX, useEffect, useMemo, useRef, useState } from "react";
import { bytes, count, number, rankList } from "../../format";
import type { Theme } from "../../theme";
import { Fragment, h } from "../jsx";
import type { MediaName, MediumHead } from "../messages";
import { useAnswer } from "./answers";
import type { RunsClient } from "./client";
import { fileName, save } from "./files";
import { mediaOf, mediumOf } from "./pageClient";
import { cut } from "./values";

/** Cards before a person asks for more. */
const FIRST = 12;

/** Things of one step that are shown at once. */
const TILES = 64;

/** Notes below a card; each thing has its own as its title. */
const NOTES = 1;

/** Rows and columns of a table, and letters of a text, that are shown. */
const ROWS = 200;
const COLUMNS = 50;
const LETTERS = 100_000;

/** Things whose bytes are kept in case a person goes back to them. */
const KEPT = 200;

/** Milliseconds that a slider rests on a step before its things are fetched. */
const REST = 60;

/** The bytes of things that were shown, the newest last. */
class Cache {
  private found = new Map<number, Promise<Blob>>();

  constructor(private client: RunsClient) {}

  has(id: number): boolean {
    return this.found.has(id);
  }

  get(id: number): Promise<Blob> {
    const known = this.found.get(id) ?? mediumOf(this.client, id);
    this.found.delete(id);
    this.found.set(id, known);
    known.catch(() => this.found.delete(id));
    for (const old of this.found.keys()) {
      if (this.found.size <= KEPT) break;
      this.found.delete(old);
    }
    return known;
  }
}

interface Shared {
  run: number;
  client: RunsClient;
  cache: Cache;
  theme: Theme;
  trans: TranslationBundle;
}

export function Media(props: {
  run: number;
  names: readonly MediaName[];
  client: RunsClient;
  theme: Theme;
  trans: TranslationBundle;
}): JSX.Element {
  const { run, names, client, theme, trans } = props;
  const [all, setAll] = useState(false);
  const [together, setTogether] = useState(true);
  /** The step that all cards show, or the newest before it; null for the newest. */
  const [step, setStep] = useState<number | null>(null);
  const cache = useMemo(() => new Cache(client), [client]);
  const ordered = useMemo(() => histogramsLast(names), [names]);
  const shown = all ? ordered : ordered.slice(0, FIRST);
  return (
    <div className="dtrain-media">
      {names.length > 1 && (
        <label className="dtrain-media-together">
          <input
            type="checkbox"
            checked={together}
            onChange={() => {
              setTogether(!together);
            }}
          />
          {trans.__("Move all sliders together")}
        </label>
      )}
      <div className="dtrain-media-cards">
        {shown.map((one) => (
          <Card
            key={one.name}
            name={one}
            shared={{ run, client, cache, theme, trans }}
            step={together ? step : undefined}
            setStep={setStep}
          />
        ))}
      </div>
      {names.length > shown.length && (
        <button
          type="button"
          className="dtrain-page-button"
          onClick={() => {
            setAll(true);
          }}
        >
          {trans.__("Show %1 more", names.length - shown.length)}
        </button>
      )}
    </div>
  );
}

/** Histograms of a model's weights are many: what else a run has logged stands before them. */
export function histogramsLast(names: readonly MediaName[]): MediaName[] {
  return [...names].sort((one, other) => Number(one.kind === "histogram") - Number(other.kind === "histogram"));
}

/** The place of the newest of `steps` that is not after `step`; the first if all are. */
export function placeOf(steps: readonly number[], step: number | null): number {
  if (step === null) return Math.max(0, steps.length - 1);
  return Math.max(0, steps.filter((one) => one <= step).length - 1);
}

function Card(props: {
  name: MediaName;
  shared: Shared;
  /** Undefined if the card moves alone. */
  step: number | null | undefined;
  setStep: (step: number | null) => void;
}): JSX.Element {
  const { name, shared } = props;
  const { run, client, cache, trans } = shared;
  const kept = `${name.kept} ${name.logged}`;
  const [index, problem] = useAnswer(() => mediaOf(client, run, name.name), [client, run, name.name, kept]);
  const heads = index?.media ?? null;
  const [alone, setAlone] = useState<number | null>(null);
  const [rank, setRank] = useState<number | "all">(name.ranks[0] ?? 0);
  const [large, setLarge] = useState(false);
  const mine = useMemo(() => (heads ?? []).filter((one) => rank === "all" || one.rank === rank), [heads, rank]);
  const steps = useMemo(() => [...new Set(mine.map((one) => one.step))].sort((one, other) => one - other), [mine]);
  const place = placeOf(steps, props.step === undefined ? alone : props.step);
  const step = steps[place];
  const shown = mine.filter((one) => one.step === step);
  useEffect(() => {
    // A person who moves the slider goes on in the same direction, mostly by one.
    const next = mine.filter((one) => one.step === steps[place + 1]).slice(0, 4);
    const timer = setTimeout(() => {
      for (const one of next) void cache.get(one.id).catch(() => undefined);
    }, 500);
    return () => {
      clearTimeout(timer);
    };
  }, [place, mine]);
  const move = (to: number): void => {
    const chosen = to >= steps.length - 1 ? null : steps[to]!;
    setAlone(chosen);
    props.setStep(chosen);
  };
  const notes = [...new Set(shown.map((one) => one.note))].filter((note) => note !== "");
  return (
    <figure className="dtrain-media-card" data-kind={name.kind} data-large={large} aria-label={name.name}>
      <figcaption>
        <b title={name.name}>{cut(name.name, 80)}</b>
        {name.ranks.length > 1 && (
          <select
            aria-label={trans.__("Rank of %1", name.name)}
            value={String(rank)}
            onChange={(event) => {
              setRank(event.target.value === "all" ? "all" : Number(event.target.value));
            }}
          >
            {name.ranks.map((one) => (
              <option key={one} value={one}>
                {trans.__("rank %1", one)}
              </option>
            ))}
            <option value="all">{trans.__("all ranks")}</option>
          </select>
        )}
        <button
          type="button"
          className="dtrain-small"
          aria-pressed={large}
          onClick={() => {
            setLarge(!large);
          }}
        >
          {trans.__("large")}
        </button>
      </figcaption>
      {steps.length > 0 && (
        <label className="dtrain-media-step">
          <input
            type="range"
            min={0}
            max={Math.max(0, steps.length - 1)}
            value={place}
            disabled={steps.length < 2}
            aria-label={trans.__("Step of %1", name.name)}
            aria-valuetext={trans.__("step %1", step)}
            onChange={(event) => {
              move(Number(event.target.value));
            }}
          />
          <output>{trans.__("step %1", count(step!))}</output>
        </label>
      )}
      {problem !== "" && <p className="dtrain-trouble">{problem}</p>}
      {heads === null && problem === "" && <p className="dtrain-quiet">{trans.__("Loading…")}</p>}
      <div className="dtrain-media-tiles" data-count={shown.length}>
        {shown.slice(0, TILES).map((one) => (
          <Tile key={`${one.rank} ${one.number}`} medium={one} shared={shared} ranks={rank === "all"} />
        ))}
      </div>
      {[
        shown.length > TILES && trans.__("%1 more at this step.", shown.length - TILES),
        ...notes.slice(0, NOTES).map((note) => cut(note)),
        notes.length > NOTES && trans.__("Hold the pointer over one for its own note."),
        name.logged > name.kept &&
          trans.__("%1 of %2 that were logged are kept.", count(name.kept), count(name.logged)),
        index !== null &&
          index.left_out > 0 &&
          trans.__("%1 more are in the store: run.media in Python has them.", count(index.left_out)),
      ].map((words, index) => words !== false && <small key={index}>{words}</small>)}
    </figure>
  );
}

function Tile({ medium, shared, ranks }: { medium: MediumHead; shared: Shared; ranks: boolean }): JSX.Element {
  const { cache, trans } = shared;
  const [shown, setShown] = useState<{ medium: MediumHead; blob: Blob } | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let over = false;
    const timer = setTimeout(
      () => {
        cache.get(medium.id).then(
          (blob) => {
            if (over) return;
            // Until then the thing of the step before is there, so that nothing flickers.
            setShown({ medium, blob });
            setProblem("");
          },
          (error: unknown) => {
            if (!over) setProblem((error as Error).message);
          },
        );
      },
      cache.has(medium.id) || shown === null ? 0 : REST,
    );
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [medium.id]);
  const words = [ranks ? trans.__("rank %1", medium.rank) : "", medium.caption]
    .filter((part) => part !== "")
    .join(" · ");
  return (
    <div className="dtrain-media-tile" title={medium.note}>
      {problem !== "" ? (
        <p className="dtrain-trouble">{problem}</p>
      ) : shown === null ? (
        <p className="dtrain-quiet">{trans.__("Loading…")}</p>
      ) : (
        <Shown {...shown} shared={shared} />
      )}
      {words !== "" && <small title={words}>{cut(words, 120)}</small>}
    </div>
  );
}

function Shown({ medium, blob, shared }: { medium: MediumHead; blob: Blob; shared: Shared }): JSX.Element {
  const { trans } = shared;
  const { mime, kind, name, step } = medium;
  const url = useUrl(blob);
  const text = useText(blob, kind === "histogram" || kind === "table" || mime === "text/plain");
  const label = `${name} · ${trans.__("step %1", step)}`;
  // An SVG image in an <img> runs nothing either, but the server gives none away as what it is.
  if (/^image\/(?:png|jpeg|gif|webp)$/.test(mime)) {
    return (
      <img
        src={url}
        alt={medium.caption === "" ? label : medium.caption}
        onLoad={(event) => {
          const { naturalWidth, naturalHeight, dataset } = event.currentTarget;
          dataset.small = String(Math.max(naturalWidth, naturalHeight) <= 128);
        }}
      />
    );
  }
  if (mime.startsWith("audio/")) return <audio controls src={url} aria-label={label} />;
  if (mime === "text/plain" && text !== null) {
    return (
      <pre tabIndex={0} aria-label={label}>
        {cut(text, LETTERS)}
      </pre>
    );
  }
  const parsed = text === null ? undefined : parse(text);
  const histogram = kind === "histogram" ? histogramOf(parsed) : null;
  if (histogram !== null) return <Histogram {...{ histogram, label, trans }} />;
  const table = kind === "table" ? tableOf(parsed) : null;
  if (table !== null) return <Table {...{ table, label, trans }} />;
  if (text === null && (kind === "histogram" || kind === "table" || mime === "text/plain")) {
    return <p className="dtrain-quiet">{trans.__("Loading…")}</p>;
  }
  return (
    <button
      type="button"
      className="dtrain-page-button"
      onClick={() => {
        save(fileName(`${name}-${step}`, mime.includes("json") ? "json" : "bin"), blob);
      }}
    >
      {trans.__("Save %1 (%2)", mime === "" ? kind : mime, bytes(blob.size))}
    </button>
  );
}

/** An address of this page for the bytes, as long as the component shows them. */
function useUrl(blob: Blob): string {
  const url = useMemo(() => URL.createObjectURL(blob), [blob]);
  useEffect(
    () => () => {
      URL.revokeObjectURL(url);
    },
    [url],
  );
  return url;
}

/** The bytes as text; null until they are read, and where nobody wants it. */
function useText(blob: Blob, wanted: boolean): string | null {
  const [found, setFound] = useState<{ blob: Blob; text: string } | null>(null);
  const newest = useRef(blob);
  newest.current = blob;
  useEffect(() => {
    if (!wanted) return;
    void blob.text().then((text) => {
      if (newest.current === blob) setFound({ blob, text });
    });
  }, [blob, wanted]);
  return found?.text ?? null;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export interface HistogramData {
  /** One more than `counts`. */
  edges: number[];
  counts: number[];
  mean: number | null;
  deviation: number | null;
}

/** A histogram from JSON; null for anything else. */
export function histogramOf(data: unknown): HistogramData | null {
  const { edges, counts, mean, deviation } = (data ?? {}) as Partial<Record<keyof HistogramData, unknown>>;
  if (!Array.isArray(edges) || !Array.isArray(counts) || counts.length === 0) return null;
  const numbers = (all: unknown[]): all is number[] => all.every((one) => typeof one === "number");
  if (edges.length !== counts.length + 1 || !numbers(edges) || !numbers(counts)) return null;
  const one = (value: unknown): number | null => (typeof value === "number" ? value : null);
  return { edges, counts, mean: one(mean), deviation: one(deviation) };
}

const WIDTH = 320;
const HEIGHT = 120;
const BELOW = 16;

function Histogram(props: { histogram: HistogramData; label: string; trans: TranslationBundle }): JSX.Element {
  const { histogram, label, trans } = props;
  const { edges, counts, mean, deviation } = histogram;
  const [low, high] = [edges[0]!, edges.at(-1)!];
  const most = Math.max(1e-300, ...counts);
  const across = (value: number): number => ((value - low) / (high - low || 1)) * WIDTH;
  const zero = low < 0 && high > 0 ? across(0) : null;
  const bars = (
    <svg
      className="dtrain-media-histogram"
      viewBox={`0 0 ${WIDTH} ${HEIGHT + BELOW}`}
      role="img"
      aria-label={trans.__("%1: histogram from %2 to %3", label, number(low), number(high))}
    >
      {counts.map((value, index) => {
        const [left, right] = [across(edges[index]!), across(edges[index + 1]!)];
        const height = (value / most) * (HEIGHT - 4);
        return (
          <rect key={index} x={left} y={HEIGHT - height} width={Math.max(0.3, right - left - 0.4)} height={height}>
            <title>
              {trans.__("%1 from %2 to %3", count(value), number(edges[index]!), number(edges[index + 1]!))}
            </title>
          </rect>
        );
      })}
      <path className="dtrain-media-axis" d={`M0 ${HEIGHT + 0.5}h${WIDTH}`} />
      {zero !== null && <path className="dtrain-media-axis" d={`M${zero} ${HEIGHT}v4`} />}
      <text x="0" y={HEIGHT + 13}>
        {number(low)}
      </text>
      {zero !== null && zero > 60 && zero < WIDTH - 60 && (
        <text x={zero} y={HEIGHT + 13} textAnchor="middle">
          0
        </text>
      )}
      <text x={WIDTH} y={HEIGHT + 13} textAnchor="end">
        {number(high)}
      </text>
    </svg>
  );
  return (
    <>
      {bars}
      {mean !== null && deviation !== null && (
        <small>{trans.__("mean %1, standard deviation %2", number(mean), number(deviation))}</small>
      )}
    </>
  );
}

export interface TableData {
  columns: string[];
  rows: unknown[][];
}

/** A table from JSON; null for anything else. */
export function tableOf(data: unknown): TableData | null {
  const { columns, rows } = (data ?? {}) as Partial<Record<keyof TableData, unknown>>;
  if (!Array.isArray(columns) || !Array.isArray(rows) || !rows.every((row) => Array.isArray(row))) return null;
  return { columns: columns.map(String), rows };
}

function Table({ table, label, trans }: { table: TableData; label: string; trans: TranslationBundle }): JSX.Element {
  const { columns, rows } = table;
  return (
    <div className="dtrain-page-scroll" tabIndex={0} role="region" aria-label={label}>
      <table className="dtrain-page-table">
        <thead>
          <tr>
            {columns.slice(0, COLUMNS).map((column, index) => (
              <th key={index} scope="col" title={column}>
                {cut(column, 60)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, ROWS).map((row, index) => (
            <tr key={index}>
              {row.slice(0, COLUMNS).map((value, place) => (
                <td key={place} data-number={typeof value === "number"}>
                  {typeof value === "number" ? number(value) : value === null ? "" : cut(textOf(value))}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {(rows.length > ROWS || columns.length > COLUMNS) && (
        <small>{trans.__("The table has %1 rows and %2 columns.", count(rows.length), count(columns.length))}</small>
      )}
    </div>
  );
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Ranks in words. */
export function ranksText(ranks: readonly number[], trans: TranslationBundle): string {
  return ranks.length === 1 ? trans.__("rank %1", ranks[0]) : trans.__("ranks %1", rankList(ranks));
}
