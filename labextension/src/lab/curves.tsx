/** The curves of one run, or of several runs in one chart, as React components. */

import { closeIcon } from "@jupyterlab/ui-components";
import { type JSX, useEffect, useRef } from "react";
import { Chart } from "../chart";
import type { Range } from "../layout";
import type { Metric, RunModel } from "../model";
import { RunPanel } from "../panel";
import { onThemeChange, themeOf } from "../theme";
import { Fragment, h } from "./jsx";
import { Tool } from "./section";

/** The curves of a run, updated while it goes on. */
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

/** The curves of several runs, one chart for each metric. A metric's columns are runs, and `names` has their labels. */
export function Overlay(props: {
  metrics: Metric[];
  names: string[];
  /** More about each run. */
  words: string[];
  /** Words for the case that there is no metric. */
  none: string;
  dropWords: (name: string) => string;
  /** Leave out a run, by its place in `names`. */
  drop: (line: number) => void;
}): JSX.Element {
  const { metrics, names } = props;
  const place = useRef<HTMLDivElement>(null);
  const legend = useRef<HTMLUListElement>(null);
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
    const colour = (): void => {
      const theme = themeOf(root);
      legend.current!.querySelectorAll<SVGLineElement>("line").forEach((line, index) => {
        line.setAttribute("stroke", theme.rank(index));
        line.setAttribute("stroke-dasharray", theme.dashOfRun(index).join(" "));
      });
    };
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
      colour();
      draw();
    };
    const end = onThemeChange(() => {
      // The theme's style sheets may still be loading, and until then the charts may have no size.
      retheme();
      clearTimeout(later);
      later = window.setTimeout(retheme, 500);
    });
    colour();
    draw();
    return () => {
      observer.disconnect();
      end();
      clearTimeout(later);
      for (const chart of charts) chart.destroy();
      root.replaceChildren();
    };
  }, [metrics, names]);
  return (
    <>
      <ul ref={legend} className="dtrain-legend">
        {names.map((name, line) => (
          <li key={name}>
            <svg width="22" height="8" aria-hidden="true">
              <line x1="0" y1="4" x2="22" y2="4" strokeWidth="2" />
            </svg>
            <span className="dtrain-ellipsis" title={props.words[line]}>
              {name} {props.words[line]}
            </span>
            <Tool
              icon={closeIcon}
              label={props.dropWords(name)}
              run={() => {
                props.drop(line);
              }}
            />
          </li>
        ))}
      </ul>
      {metrics.length === 0 && <p className="dtrain-quiet">{props.none}</p>}
      <div ref={place} className="dtrain-run dtrain-charts-only" />
    </>
  );
}
