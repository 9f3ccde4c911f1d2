/**
 * Parallel coordinates: one axis for each value of the configuration in which runs differ, and one for a metric.
 *
 * Each run is a line from axis to axis. A person drags along axes to choose runs, and shows those in the charts.
 */

import "../../../style/runPage.css";

import type { TranslationBundle } from "@jupyterlab/translation";
import { type JSX, type PointerEvent, useEffect, useMemo, useRef, useState } from "react";
import { number, short } from "../../format";
import { heat, type Theme } from "../../theme";
import { Fragment, h } from "../jsx";
import type { RunListing, StoredRun } from "../messages";
import { useAnswer } from "./answers";
import { labelOf, type RunsClient } from "./client";
import { styleOf } from "./colours";
import { valuesOf } from "./pageClient";
import { inside, scaleOf, type Brush, type Scale } from "./scales";
import { cut, numberText, valueText } from "./values";

/** Axes that a person can choose from, and those that are there at first. */
const MOST = 40;
const FIRST = 8;

/** With so few runs each line has its run's colour; with more, that of its metric. */
const OWN_COLOURS = 8;

const HEIGHT = 320;
const TOP = 44;
const BELOW = 16;
const SIDE = 64;
/** How far from an axis one may begin to drag. */
const REACH = 14;

type Figure = "min" | "max" | "last";

export function Parallel(props: {
  ids: readonly number[];
  client: RunsClient;
  trans: TranslationBundle;
  theme: Theme;
  choose?: (ids: number[]) => void;
}): JSX.Element {
  const { ids, client, trans, theme, choose } = props;
  const key = ids.join();
  const [metric, setMetric] = useState<string | null>(null);
  const [figure, setFigure] = useState<Figure | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [shown, setShown] = useState<ReadonlySet<string>>(new Set());
  const ask = (columns: string[]): Promise<RunListing> => valuesOf(client, ids, columns);
  const [choices, trouble] = useAnswer(() => (ids.length < 2 ? null : ask([])), [client, key]);
  const metrics = choices?.metrics.map(({ name }) => name) ?? [];
  const chosen = metric ?? bestMetric(metrics);
  const best = figure ?? (chosen === null ? "last" : bestFigure(chosen));
  const wanted = [
    ...(choices?.configs ?? [])
      .filter(({ distinct }) => distinct > 1)
      .slice(0, MOST)
      .map(({ name }) => `config:${name}`),
    ...(chosen === null ? [] : [`metric:${chosen}:${best}`]),
  ];
  const [listing, problem] = useAnswer(
    () => (wanted.length === 0 ? null : ask(wanted)),
    [client, key, wanted.join("\n")],
  );
  const axes = useMemo(() => axesOf(listing), [listing]);
  if (ids.length < 2) {
    return <p className="dtrain-quiet">{trans.__("Choose two runs or more to see them on axes of what differs.")}</p>;
  }
  if (trouble + problem !== "") return <p className="dtrain-trouble">{trouble || problem}</p>;
  if (listing === null) {
    const none = choices !== null && wanted.length === 0;
    return <p className="dtrain-quiet">{none ? trans.__("No value of these runs differs.") : trans.__("Loading…")}</p>;
  }
  const configs = axes.filter((axis) => !axis.metric);
  const seen = (axis: Axis, index: number): boolean =>
    axis.metric || shown.has(axis.key) || (index < FIRST && !hidden.has(axis.key));
  const drawn = [...configs.filter(seen), ...axes.filter((axis) => axis.metric)];
  const toggle = (axis: Axis, index: number): void => {
    const now = seen(axis, index);
    const [less, more] = [new Set(hidden), new Set(shown)];
    if (now) less.add(axis.key);
    else less.delete(axis.key);
    if (now) more.delete(axis.key);
    else more.add(axis.key);
    setHidden(less);
    setShown(more);
  };
  const figures: [Figure, string][] = [
    ["min", trans.__("lowest")],
    ["max", trans.__("highest")],
    ["last", trans.__("last")],
  ];
  return (
    <div className="dtrain-parallel" role="region" aria-label={trans.__("Parallel coordinates")}>
      <div className="dtrain-parallel-controls">
        {metrics.length > 0 && (
          <label>
            {trans.__("Result")}
            <select
              aria-label={trans.__("Which value of the metric")}
              value={best}
              onChange={(event) => {
                setFigure(event.target.value as Figure);
              }}
            >
              {figures.map(([value, words]) => (
                <option key={value} value={value}>
                  {words}
                </option>
              ))}
            </select>
            <select
              aria-label={trans.__("Metric")}
              value={chosen ?? ""}
              onChange={(event) => {
                setMetric(event.target.value);
                setFigure(null);
              }}
            >
              {metrics.map((name) => (
                <option key={name} value={name}>
                  {cut(name, 60)}
                </option>
              ))}
            </select>
          </label>
        )}
        {configs.length > 1 && (
          <details>
            <summary>{trans.__("%1 of %2 axes", drawn.filter((axis) => !axis.metric).length, configs.length)}</summary>
            {configs.map((axis, index) => (
              <label key={axis.key}>
                <input
                  type="checkbox"
                  checked={seen(axis, index)}
                  onChange={() => {
                    toggle(axis, index);
                  }}
                />
                {cut(axis.title, 60)}
              </label>
            ))}
          </details>
        )}
      </div>
      {configs.length === 0 && (
        <p className="dtrain-quiet">{trans.__("The configuration of these runs is the same.")}</p>
      )}
      <Drawing
        key={drawn.map((axis) => axis.key).join("\n")}
        runs={listing.runs}
        {...{ axes: drawn, trans, theme, choose }}
      />
    </div>
  );
}

interface Axis {
  key: string;
  title: string;
  metric: boolean;
  /** The place of its values in those of a run. */
  index: number;
  scale: Scale;
}

function axesOf(listing: RunListing | null): Axis[] {
  return (listing?.columns ?? []).flatMap(({ key, title }, index): Axis[] => {
    const scale = scaleOf(listing!.runs.map((run) => run.values[index]));
    return scale === null ? [] : [{ key, title, index, scale, metric: key.startsWith("metric:") }];
  });
}

/** The metric that people judge runs by, as far as names tell it. */
export function bestMetric(names: readonly string[]): string | null {
  const wanted = [
    /^(val|eval|valid|validation|test).*(acc|f1|auc|bleu|score)/i,
    /^(val|eval|valid|validation|test).*loss/i,
  ];
  const more = [/acc|f1|auc|bleu|score/i, /loss/i];
  for (const one of [...wanted, ...more]) {
    const found = names.find((name) => one.test(name));
    if (found !== undefined) return found;
  }
  return names[0] ?? null;
}

/** Whether the highest or the lowest value of a metric is the best one, as far as its name tells it. */
export function bestFigure(name: string): Figure {
  if (/loss|error|perplexity|ppl|wer|mse|mae/i.test(name)) return "min";
  return /acc|f1|auc|bleu|score|reward|precision|recall/i.test(name) ? "max" : "last";
}

function Drawing(props: {
  runs: readonly StoredRun[];
  axes: readonly Axis[];
  trans: TranslationBundle;
  theme: Theme;
  choose: ((ids: number[]) => void) | undefined;
}): JSX.Element {
  const { runs, axes, trans, theme, choose } = props;
  const [brushes, setBrushes] = useState<ReadonlyMap<number, Brush>>(new Map());
  const [over, setOver] = useState<number | null>(null);
  const [width, setWidth] = useState(800);
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => {
      if (entry !== undefined && entry.contentRect.width > 0) setWidth(Math.floor(entry.contentRect.width));
    });
    observer.observe(place.current!);
    return () => {
      observer.disconnect();
    };
  }, []);
  const rows = useMemo(
    () => runs.map((run) => ({ run, places: axes.map(({ scale, index }) => scale.place(run.values[index])) })),
    [runs, axes],
  );
  const left = (axis: number): number => SIDE + (axis * (width - 2 * SIDE)) / Math.max(1, axes.length - 1);
  const up = (share: number): number => HEIGHT - BELOW - share * (HEIGHT - TOP - BELOW);
  const result = axes.findIndex((axis) => axis.metric);
  const colour = ({ run, places }: (typeof rows)[number]): string => {
    const value = places[result];
    if (rows.length <= OWN_COLOURS || result === -1) return theme.rank(styleOf(run.id).colour);
    // Ends of the scale that are near the page's colour would not be seen.
    return value == null ? theme.grid : heat(theme.dark ? 0.3 + 0.7 * value : 0.85 * value);
  };
  const chosen = rows.filter(({ places }) => inside(places, brushes));
  const path = (places: readonly (number | null)[]): string => {
    let pen = "M";
    return places
      .map((share, axis) => {
        if (share === null) {
          pen = "M";
          return "";
        }
        const part = `${pen}${left(axis).toFixed(1)} ${up(share).toFixed(1)}`;
        pen = "L";
        return part;
      })
      .join("");
  };
  const brush = (axis: number, part: Brush | null): void => {
    setBrushes((now) => {
      const next = new Map(now);
      if (part === null) next.delete(axis);
      else next.set(axis, part);
      return next;
    });
  };
  const under = rows.find(({ run }) => run.id === over);
  const room = axes.length > 1 ? left(1) - left(0) : width;
  return (
    <>
      <div ref={place}>
        <svg className="dtrain-parallel-drawing" viewBox={`0 0 ${width} ${HEIGHT}`} height={HEIGHT}>
          <g fill="none">
            {rows.map((row) => {
              const { run, places } = row;
              const there = chosen.includes(row);
              return (
                <path
                  key={run.id}
                  d={path(places)}
                  stroke={colour(row)}
                  data-run={run.id}
                  data-out={!there}
                  data-over={run.id === over}
                  onPointerEnter={() => {
                    setOver(run.id);
                  }}
                  onPointerLeave={() => {
                    setOver(null);
                  }}
                >
                  <title>{`${labelOf(run)} ${cut(run.name, 80)}`}</title>
                </path>
              );
            })}
          </g>
          {axes.map((axis, index) => (
            <AxisView
              key={axis.key}
              {...{ axis, room, trans }}
              left={left(index)}
              last={index > 0 && index === axes.length - 1}
              up={up}
              part={brushes.get(index) ?? null}
              brush={(part) => {
                brush(index, part);
              }}
            />
          ))}
        </svg>
      </div>
      <p className="dtrain-parallel-words" role="status">
        {under === undefined
          ? brushes.size === 0
            ? trans.__("Drag along an axis to choose runs.")
            : trans.__("%1 of %2 runs are in the chosen parts.", chosen.length, rows.length)
          : [
              `${labelOf(under.run)} ${cut(under.run.name, 60)}`.trim(),
              ...axes.map(({ title, index }) => `${cut(title, 30)} ${valueWords(under.run.values[index])}`),
            ].join(" · ")}
        {brushes.size > 0 && (
          <>
            {choose !== undefined && chosen.length > 0 && (
              <button
                type="button"
                className="dtrain-page-button"
                onClick={() => {
                  choose(chosen.map(({ run }) => run.id));
                }}
              >
                {trans._n(
                  "Show only this %1 run in the charts",
                  "Show only these %1 runs in the charts",
                  chosen.length,
                )}
              </button>
            )}
            <button
              type="button"
              className="dtrain-page-button"
              onClick={() => {
                setBrushes(new Map());
              }}
            >
              {trans.__("Clear")}
            </button>
          </>
        )}
      </p>
    </>
  );
}

function valueWords(value: unknown): string {
  return value == null ? "–" : typeof value === "number" ? number(value) : cut(valueText(value), 40);
}

/** How far a key moves a chosen part. */
const MOVED = 0.05;

function AxisView(props: {
  axis: Axis;
  left: number;
  /** Whether it is the last of several: no line goes on at its right, where its values stand. */
  last: boolean;
  room: number;
  up: (share: number) => number;
  part: Brush | null;
  brush: (part: Brush | null) => void;
  trans: TranslationBundle;
}): JSX.Element {
  const { axis, left, last, room, up, part, brush, trans } = props;
  const begun = useRef<number | null>(null);
  const letters = Math.max(6, Math.floor(room / 7));
  const shareAt = (event: PointerEvent<SVGElement>): number => {
    const box = event.currentTarget.getBoundingClientRect();
    return Math.min(1, Math.max(0, 1 - (event.clientY - box.top) / box.height));
  };
  const [low, high] = part ?? [0, 1];
  const keep = (one: number, other: number): void => {
    brush([Math.max(0, Math.min(one, other)), Math.min(1, Math.max(one, other))]);
  };
  return (
    <g className="dtrain-parallel-axis">
      <path d={`M${left} ${up(0)}V${up(1)}`} />
      <text x={left} y={TOP - 24} textAnchor="middle" data-title="true">
        <title>{axis.title}</title>
        {cut(axis.title, letters)}
      </text>
      {axis.scale.ticks.map(([share, value]) => (
        <text key={String(value)} x={last ? left + 9 : left - 9} y={up(share) + 4} textAnchor={last ? "start" : "end"}>
          {typeof value === "number" ? (axis.metric ? short(value) : numberText(value)) : cut(value, 10)}
        </text>
      ))}
      {part !== null && (
        <rect className="dtrain-parallel-part" x={left - 5} width="10" y={up(high)} height={up(low) - up(high)} />
      )}
      <rect
        className="dtrain-parallel-grip"
        x={left - REACH}
        width={2 * REACH}
        y={up(1)}
        height={up(0) - up(1)}
        tabIndex={0}
        role="slider"
        aria-orientation="vertical"
        aria-label={trans.__(
          "%1: up and down move the chosen part, plus and minus change it, Escape clears",
          axis.title,
        )}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.round(50 * (low + high))}
        aria-valuetext={
          part === null ? trans.__("all") : trans.__("%1 to %2 percent", ...part.map((one) => Math.round(100 * one)))
        }
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          begun.current = shareAt(event);
        }}
        onPointerMove={(event) => {
          if (begun.current !== null) keep(begun.current, shareAt(event));
        }}
        onPointerUp={(event) => {
          // A click without a drag clears.
          if (begun.current !== null && Math.abs(shareAt(event) - begun.current) < 0.01) brush(null);
          begun.current = null;
        }}
        onKeyDown={(event) => {
          const by = { ArrowUp: MOVED, ArrowDown: -MOVED }[event.key];
          const wider = { "+": MOVED, "=": MOVED, "-": -MOVED }[event.key];
          if (event.key === "Escape") brush(null);
          else if (by !== undefined && part === null) keep(by > 0 ? 0.5 : 0, by > 0 ? 1 : 0.5);
          else if (by !== undefined && high + by <= 1.001 && low + by >= -0.001) keep(low + by, high + by);
          else if (wider !== undefined) keep(Math.min(low - wider, high - MOVED), high + wider);
          else if (by === undefined) return;
          event.preventDefault();
          event.stopPropagation();
        }}
      />
    </g>
  );
}
