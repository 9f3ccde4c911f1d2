/** The curves of one run, or of several runs in one chart, as React components. */

import { type JSX, useEffect, useRef } from "react";
import { Chart } from "../chart";
import type { Range } from "../layout";
import type { Metric, RunModel } from "../model";
import { RunPanel } from "../panel";
import { onThemeChange, themeOf } from "../theme";
import { h } from "./jsx";

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
      // The theme's style sheets may still be loading, and until then the charts may have no size.
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
