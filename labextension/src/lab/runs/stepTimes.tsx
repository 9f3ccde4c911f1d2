/** Where the time of a step went in the chosen runs: bars below each other, on one scale, the reasons, and the courses. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { type JSX, useEffect, useMemo, useRef } from "react";
import { addressOf, anchorOfReason, h as make } from "../../dom";
import { STEP_PARTS, type StepRow, type StepTimePart } from "../../generated";
import type { Range } from "../../layout";
import { barOf, CourseChart, legendOf, SpentBars, type BarRow } from "../../stepTime";
import type { Theme } from "../../theme";
import { Fragment, h } from "../jsx";
import type { Chosen, Spread } from "./figures";

/** A run that has seen steps. */
interface Spent {
  run: Chosen;
  step: StepTimePart;
}

/** The chosen runs in which steps were seen. */
export function spentOf(runs: readonly Chosen[]): Spent[] {
  return runs.flatMap((run) => (run.columns.step_time == null ? [] : [{ run, step: run.columns.step_time }]));
}

/** A run as people call it, without its name: `world/3`. */
function numberOf(run: Chosen): string {
  return run.label.split(" ", 1)[0]!;
}

/** The bars of `spent`, all with the same parts: the mean over the ranks of each run, or its ranks. */
export function barsOf(spent: readonly Spent[], spread: Spread): { parts: string[]; rows: BarRow[] } {
  const found = new Set(spent.flatMap(({ step }) => step.parts));
  const parts = Object.keys(STEP_PARTS).filter((part) => found.has(part));
  const rows = spent.flatMap(({ run, step }) => {
    const bar = (row: StepRow, label: string): BarRow => {
      const own = barOf(row, step.calls, label);
      return { ...own, shares: parts.map((part) => own.shares[step.parts.indexOf(part)] ?? 0) };
    };
    if (spread === "mean") return [{ ...bar(step.mean, run.label), title: run.label }];
    return step.rows.map((row) => {
      const { label } = barOf(row);
      return bar(row, spent.length > 1 ? `${numberOf(run)} · ${label}` : label);
    });
  });
  return { parts, rows };
}

export function StepTimes(props: {
  spent: readonly Spent[];
  spread: Spread;
  theme: Theme;
  range: Range | null;
  zoom: (range: Range | null) => void;
  trans: TranslationBundle;
}): JSX.Element {
  const { spent, spread, theme, trans } = props;
  const { parts, rows } = useMemo(() => barsOf(spent, spread), [spent, spread]);
  const reasons = spent.filter(({ step }) => (step.slow ?? []).length > 0);
  return (
    <div className="dtrain-runs-spent">
      {reasons.length > 0 && (
        <ul className="dtrain-why" aria-label={trans.__("Why steps are slow")}>
          {reasons.flatMap(({ run, step }) =>
            step.slow!.map(([kind, , words, advice]) => (
              <li key={`${run.id} ${words}`}>
                {spent.length > 1 && <b title={run.label}>{`${numberOf(run)}: `}</b>}
                {words} <span>{advice}</span>{" "}
                <a
                  className="dtrain-explained"
                  href={addressOf(anchorOfReason(kind))}
                  target="_blank"
                  rel="noopener noreferrer"
                >
                  {trans.__("What this means")}
                </a>
              </li>
            )),
          )}
        </ul>
      )}
      <Bars {...{ parts, rows, theme }} />
      <div className="dtrain-runs-grid">
        {spent.map(({ run, step }) => (
          <CourseOf key={run.id} {...{ run, step, theme }} range={props.range} zoom={props.zoom} />
        ))}
      </div>
    </div>
  );
}

function Bars({ parts, rows, theme }: { parts: string[]; rows: BarRow[]; theme: Theme }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const bars = useRef<SpentBars | null>(null);
  const legend = useRef<HTMLDivElement>(null);
  const draw = (): void => {
    bars.current?.update(parts, rows, theme);
    legend.current?.replaceChildren(...legendOf(parts, theme));
  };
  useDrawing(place, draw, () => {
    bars.current = new SpentBars();
    place.current!.append(bars.current.node);
    return () => {
      bars.current?.node.remove();
      bars.current = null;
    };
  });
  return (
    <>
      <div ref={place} />
      <div ref={legend} className="dtrain-spent-legend" />
    </>
  );
}

function CourseOf(props: {
  run: Chosen;
  step: StepTimePart;
  theme: Theme;
  range: Range | null;
  zoom: (range: Range | null) => void;
}): JSX.Element | null {
  const { run, step, theme, range } = props;
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<CourseChart | null>(null);
  const zoom = useRef(props.zoom);
  zoom.current = props.zoom;
  const course = step.courses?.[0];
  const draw = (): void => {
    if (course !== undefined) chart.current?.update(run.label, step.parts, course, { theme, range, marks: [] });
  };
  useDrawing(place, draw, () => {
    const name = make("span", { class: "dtrain-metric", title: run.label }, run.label);
    chart.current = new CourseChart(
      (chosen) => {
        zoom.current(chosen);
      },
      make("figcaption", {}, name),
    );
    place.current!.append(chart.current.node);
    return () => {
      chart.current?.destroy();
      chart.current?.node.remove();
      chart.current = null;
    };
  });
  return <div ref={place} />;
}

/** Make something in `place` once; draw it after each rendering, and whenever the place changes its size. */
function useDrawing(place: { current: HTMLElement | null }, draw: () => void, start: () => () => void): void {
  const redraw = useRef(draw);
  redraw.current = draw;
  useEffect(() => {
    const end = start();
    const observer = new ResizeObserver(() => {
      redraw.current();
    });
    observer.observe(place.current!);
    return () => {
      observer.disconnect();
      end();
    };
  }, []);
  useEffect(draw);
}
