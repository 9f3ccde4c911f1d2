/** The components that the widget and saved runs are made of, as React draws them. */

import { type JSX, useEffect, useRef } from "react";
import { h } from "./jsx";
import type { Range } from "../arrange";
import { Chart } from "../chart";
import type { Metric, RunModel } from "../model";
import { RunPanel } from "../panel";
import { RankStrip, SHAPES, type Shown } from "../strip";
import { onThemeChange, themeOf } from "../theme";
import type { RankState } from "../document";

/** The curves of a run, kept current. */
export function Curves({ run }: { run: RunModel }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const panel = new RunPanel(place.current!, run, true);
    return () => {
      panel.destroy();
    };
  }, [run]);
  return <div ref={place} />;
}

/** The ranks as marks, some hundred of them at a glance. */
export function Strip(props: { shown: Shown; chosen: number | null; choose: (rank: number) => void }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const strip = useRef<RankStrip | null>(null);
  const choose = useRef(props.choose);
  choose.current = props.choose;
  useEffect(() => {
    strip.current = new RankStrip((rank) => {
      choose.current(rank);
    });
    place.current!.replaceChildren(strip.current.node);
  }, []);
  useEffect(() => {
    strip.current?.update(props.shown, props.chosen, NOTHING);
  });
  return <div ref={place} className="dtrain-run dtrain-strip-only" />;
}

const NOTHING: ReadonlyMap<number, string> = new Map<number, string>();

/** The curves of several runs, one chart for each metric; its columns are runs, which `names` calls by name. */
export function Overlay({ metrics, names }: { metrics: Metric[]; names: string[] }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const root = place.current!;
    const shown = new Set(names.map((_, index) => index));
    let range: Range | null = null;
    const charts = metrics.map(
      (metric) =>
        new Chart(
          metric,
          themeOf(root),
          (chosen) => {
            range = chosen;
            draw();
          },
          (line) => names[line] ?? "",
        ),
    );
    const draw = (): void => {
      charts.forEach((chart, index) => {
        chart.update(metrics[index]!, 0, { shown, smoothing: 0, range });
      });
    };
    root.replaceChildren(...charts.map((chart) => chart.node));
    const observer = new ResizeObserver(draw);
    observer.observe(root);
    let later = 0;
    const retheme = (): void => {
      for (const chart of charts) chart.setTheme(themeOf(root));
      draw();
    };
    const end = onThemeChange(() => {
      // The theme's style sheets may be on their way: until they are here there may be no place to draw in.
      retheme();
      clearTimeout(later);
      later = window.setTimeout(retheme, 500);
    });
    draw();
    return () => {
      observer.disconnect();
      end();
      clearTimeout(later);
      for (const chart of charts) chart.destroy();
      root.replaceChildren();
    };
  }, [metrics, names]);
  return <div ref={place} className="dtrain-run dtrain-charts-only" />;
}

/** The mark of a state, by colour and by shape. */
export function Mark({ state }: { state: RankState }): JSX.Element {
  const [path, filled, words] = SHAPES[state];
  return (
    <span className="dtrain-mark" data-state={state} title={words}>
      <svg viewBox="0 0 12 12" aria-hidden="true" className={filled ? "dtrain-icon dtrain-icon-filled" : "dtrain-icon"}>
        <path d={path} />
      </svg>
    </span>
  );
}
