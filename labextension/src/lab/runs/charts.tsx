/** The charts of the chosen runs: what they logged and what they used, with the controls that all of them share. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { type JSX, type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { nameParts } from "../../dom";
import { bytes, clock, count, number, short } from "../../format";
import type { Range } from "../../layout";
import { Plot } from "../../plot";
import type { Theme } from "../../theme";
import { Fragment, h } from "../jsx";
import { haveEpochs, metricFamilies, metricFigures, resourceFigures } from "./figures";
import type { Chosen, Figure, Spread, Unit } from "./figures";
import { fileName, rasterised, save } from "./files";
import { labelOf, lineChart } from "./lineChart";
import type { Axis, Line } from "./lines";
import { spentOf, StepTimes } from "./stepTimes";
import { drawSvg } from "./svg";
import { Swatch } from "./table";

/** Charts of metrics that are drawn before a person asks for more. */
const FIRST = 24;

/** The legend lists at most this many lines. */
const LISTED = 40;

const HEIGHT = 210;
const TALL = 380;

export function Charts(props: {
  runs: readonly Chosen[];
  theme: Theme;
  trans: TranslationBundle;
  attempt: (task: () => Promise<unknown>) => Promise<boolean>;
}): JSX.Element {
  const { runs, theme, trans } = props;
  const [wanted, setAxis] = useState<Axis>("step");
  const [spread, setSpread] = useState<Spread>("mean");
  const [smoothing, setSmoothing] = useState(0);
  const [search, setSearch] = useState("");
  const [all, setAll] = useState(false);
  const [ranges, setRanges] = useState<Record<Axis, Range | null>>(WHOLE);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const families = useMemo(() => metricFamilies(runs), [runs]);
  const epochs = useMemo(() => haveEpochs(runs), [runs]);
  const axis = wanted === "epoch" && !epochs ? "step" : wanted;
  const sought = search.trim() === "" ? null : pattern(search.trim());
  const found = families.filter(({ names }) => sought === null || names.some((name) => sought.test(name)));
  const drawn = all ? found : found.slice(0, FIRST);
  const options = { axis, spread, smoothing };
  const key = drawn.map(({ names }) => names.join("\t")).join("\n");
  const metrics = useMemo(() => metricFigures(runs, drawn, options), [runs, key, axis, spread, smoothing]);
  const resources = useMemo(() => resourceFigures(runs, options), [runs, spread]);
  const spent = useMemo(() => spentOf(runs), [runs]);
  const legend = new Map(
    [...metrics, ...resources].flatMap((figure) => figure.lines).map((line) => [keyOf(line), line]),
  );
  const chart = (figure: Figure): JSX.Element => (
    <FigureView
      key={figure.key}
      figure={figure}
      range={ranges[figure.axis]}
      zoom={(range) => {
        setRanges({ ...ranges, [figure.axis]: range });
      }}
      {...{ hidden, theme, trans, attempt: props.attempt }}
    />
  );
  const choice = <T extends string>(
    label: string,
    now: T,
    set: (value: T) => void,
    values: [value: T, words: string][],
  ): JSX.Element => (
    <span role="group" aria-label={label} className="dtrain-runs-choice">
      {values.map(([value, words]) => (
        <button
          key={value}
          type="button"
          aria-pressed={now === value}
          onClick={() => {
            set(value);
          }}
        >
          {words}
        </button>
      ))}
    </span>
  );
  return (
    <>
      <div className="dtrain-runs-controls" role="toolbar" aria-label={trans.__("Charts")}>
        {choice(trans.__("Horizontal axis"), axis, setAxis, [
          ["step", trans.__("Step")],
          ["time", trans.__("Time")],
          ...(epochs ? [["epoch", trans.__("Epoch")] as [Axis, string]] : []),
        ])}
        {choice(trans.__("Lines"), spread, setSpread, [
          ["mean", trans.__("Mean over ranks")],
          ["ranks", trans.__("Each rank")],
        ])}
        <label className="dtrain-runs-smoothing">
          {trans.__("Smoothing")}
          <input
            type="range"
            min="0"
            max="0.99"
            step="0.01"
            value={smoothing}
            onChange={(event) => {
              setSmoothing(Number(event.target.value));
            }}
          />
          <output>{smoothing.toFixed(2)}</output>
        </label>
        <input
          type="search"
          placeholder={trans.__("Find a metric")}
          aria-label={trans.__("Find a metric")}
          value={search}
          onChange={(event) => {
            setSearch(event.target.value);
          }}
        />
        {Object.values(ranges).some((range) => range !== null) && (
          <button
            type="button"
            onClick={() => {
              setRanges(WHOLE);
            }}
          >
            {trans.__("Show all")}
          </button>
        )}
      </div>
      <ul className="dtrain-runs-legend" aria-label={trans.__("Legend")}>
        {[...legend].slice(0, LISTED).map(([name, line]) => (
          <li key={name}>
            <button
              type="button"
              aria-pressed={!hidden.has(name)}
              title={trans.__("Hide or show this line")}
              onClick={() => {
                const next = new Set(hidden);
                if (!next.delete(name)) next.add(name);
                setHidden(next);
              }}
            >
              <Swatch theme={theme} style={line.style} /> {nameOf(line, runs.length, trans)}
            </button>
          </li>
        ))}
        {legend.size > LISTED && <li>{trans.__("and %1 more: hover a chart to see them", legend.size - LISTED)}</li>}
      </ul>
      <Group title={trans.__("Metrics")} count={found.length}>
        {families.length === 0 && <p className="dtrain-quiet">{trans.__("The chosen runs have logged no metrics.")}</p>}
        {families.length > 0 && found.length === 0 && <p className="dtrain-quiet">{trans.__("No metric matches.")}</p>}
        <div className="dtrain-runs-grid">{metrics.map(chart)}</div>
        {found.length > drawn.length && (
          <button
            type="button"
            className="dtrain-runs-more"
            onClick={() => {
              setAll(true);
            }}
          >
            {trans.__("Show %1 more charts", found.length - drawn.length)}
          </button>
        )}
      </Group>
      {spent.length > 0 && (
        <Group title={trans.__("Time of a step")} count={spent.length}>
          <StepTimes
            range={ranges.step}
            zoom={(range) => {
              setRanges({ ...ranges, step: range });
            }}
            {...{ spent, spread, theme, trans }}
          />
        </Group>
      )}
      {resources.length > 0 && (
        <Group title={trans.__("System")} count={resources.length}>
          <div className="dtrain-runs-grid">{resources.map(chart)}</div>
        </Group>
      )}
    </>
  );
}

function keyOf(line: Line): string {
  return `${line.run} ${line.rank ?? ""}`;
}

const WHOLE: Record<Axis, Range | null> = { step: null, time: null, epoch: null };

/** A regular expression, or the text itself while that is none. */
function pattern(text: string): RegExp {
  try {
    return new RegExp(text, "i");
  } catch {
    return new RegExp(text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "i");
  }
}

/** A line's label, where a lone number would not say that it is a rank's. */
function nameOf(line: Line, runs: number, trans: TranslationBundle, lines: readonly Line[] = []): string {
  const label = labelOf(line, lines);
  return line.rank !== null && runs === 1 ? trans.__("rank %1", label) : label;
}

function Group(props: { title: string; count: number; children: ReactNode }): JSX.Element {
  return (
    <details className="dtrain-runs-group" open>
      <summary>
        {props.title} <span className="dtrain-count">{props.count}</span>
      </summary>
      {props.children}
    </details>
  );
}

function FigureView({
  figure,
  range,
  zoom,
  hidden,
  theme,
  trans,
  attempt,
}: {
  figure: Figure;
  range: Range | null;
  zoom: (range: Range | null) => void;
  hidden: ReadonlySet<string>;
  theme: Theme;
  trans: TranslationBundle;
  attempt: (task: () => Promise<unknown>) => Promise<boolean>;
}): JSX.Element {
  const [log, setLog] = useState(false);
  const [tall, setTall] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | null>(null);
  const zoomed = useRef(zoom);
  zoomed.current = zoom;
  const lines = useMemo(() => figure.lines.filter((line) => !hidden.has(keyOf(line))), [figure, hidden]);
  const runs = new Set(figure.lines.map((line) => line.run)).size;
  const onX = ON_X[figure.axis];
  const axisTitle = {
    step: trans.__("step"),
    time: trans.__("time since the run's start"),
    epoch: trans.__("epoch"),
  }[figure.axis];
  const label = trans.__(
    "%1 over %2, %3. Arrow keys read values, plus and minus zoom, 0 shows all. A table of values follows.",
    figure.title,
    axisTitle,
    trans._n("%1 line", "%1 lines", lines.length),
  );
  const content = useMemo(
    () =>
      lineChart({
        lines,
        axis: axisTitle,
        log,
        range,
        height: tall ? TALL : HEIGHT,
        theme,
        formatX: onX,
        formatY: SHORT[figure.unit],
        formatValue: LONG[figure.unit],
        head: (at) =>
          figure.axis === "step" ? trans.__("step %1", at) : figure.axis === "epoch" ? trans.__("epoch %1", at) : at,
        more: (left) => trans.__("and %1 more", left),
      }),
    [lines, log, range, tall, theme],
  );
  const draw = (): void => {
    plot.current?.frame.setAttribute("aria-label", label);
    plot.current?.update(content);
  };
  const redraw = useRef(draw);
  redraw.current = draw;
  useEffect(() => {
    const made = new Plot((chosen) => {
      zoomed.current(chosen);
    });
    plot.current = made;
    made.frame.classList.add("dtrain-runs-plot");
    made.frame.append(made.readout);
    place.current!.append(made.frame);
    const observer = new ResizeObserver(() => {
      redraw.current();
    });
    observer.observe(made.frame);
    return () => {
      observer.disconnect();
      made.destroy();
      made.frame.remove();
      plot.current = null;
    };
  }, []);
  useEffect(draw);
  const picture = (): ReturnType<typeof drawSvg> => {
    const view = plot.current?.view;
    if (view == null) throw new Error(trans.__("This chart has no points yet."));
    const page = getComputedStyle(place.current!).getPropertyValue("--jp-layout-color1").trim();
    return drawSvg({
      title: figure.title,
      axis: axisTitle,
      curves: lines.map((line) => ({
        ...line,
        label: nameOf(line, runs, trans, lines),
        colour: theme.rank(line.style.colour),
        dash: theme.dashOfRun(line.style.dash),
      })),
      ...view,
      log,
      colours: { ...theme, page: page || (theme.dark ? "#111" : "#fff") },
      formatX: onX,
      formatY: SHORT[figure.unit],
    });
  };
  const saveSvg = async (): Promise<void> => {
    save(fileName(figure.title, "svg"), new Blob([picture().text], { type: "image/svg+xml" }));
    return Promise.resolve();
  };
  const savePng = async (): Promise<void> => {
    save(fileName(figure.title, "png"), await rasterised(picture()));
  };
  const tool = (words: string, label: string, run: () => void, pressed?: boolean): JSX.Element => (
    <button
      type="button"
      className="dtrain-small"
      aria-label={label}
      title={label}
      aria-pressed={pressed}
      onClick={run}
    >
      {words}
    </button>
  );
  return (
    <figure className="dtrain-chart" data-tall={tall}>
      <figcaption>
        <span className="dtrain-metric" title={figure.names.join("\n")}>
          {nameParts(figure.title).map((part, index) => (
            <span key={index}>{part}</span>
          ))}
        </span>
        {figure.names.length > 1 && <Marks lines={figure.lines} />}
        <span className="dtrain-runs-chart-tools">
          {tool(
            trans.__("log"),
            trans.__("Logarithmic axis of %1", figure.title),
            () => {
              setLog(!log);
            },
            log,
          )}
          {tool(
            trans.__("large"),
            trans.__("Large chart of %1", figure.title),
            () => {
              setTall(!tall);
            },
            tall,
          )}
          {tool("PNG", trans.__("Save the chart of %1 as PNG", figure.title), () => void attempt(savePng))}
          {tool("SVG", trans.__("Save the chart of %1 as SVG", figure.title), () => void attempt(saveSvg))}
        </span>
      </figcaption>
      <div ref={place} />
      <Values {...{ figure, lines, runs, trans }} />
    </figure>
  );
}

/** Which marks the metrics of a chart have. */
function Marks({ lines }: { lines: readonly Line[] }): JSX.Element {
  const found = new Map(lines.map(({ metric, mark }) => [metric, mark]));
  return (
    <span className="dtrain-runs-marks">
      {[...found].map(([metric, mark]) => (
        <span key={metric} title={metric}>
          <svg viewBox="0 0 18 8" aria-hidden="true" data-mark={mark}>
            <path d="M0 4h18" />
            {mark > 0 && <circle cx="9" cy="4" r="3" />}
          </svg>
          {metric}
        </span>
      ))}
    </span>
  );
}

/** A table of a chart's lines, for those who do not see them. It is made when a person opens it. */
function Values({
  figure,
  lines,
  runs,
  trans,
}: {
  figure: Figure;
  lines: readonly Line[];
  runs: number;
  trans: TranslationBundle;
}): JSX.Element {
  const [open, setOpen] = useState(false);
  const text = LONG[figure.unit];
  const row = (line: Line): JSX.Element => {
    const values = line.raw ?? line.ys;
    const least = values.reduce((low, value) => Math.min(low, value), Infinity);
    const most = values.reduce((high, value) => Math.max(high, value), -Infinity);
    return (
      <tr key={`${keyOf(line)} ${line.metric}`}>
        <th scope="row">{nameOf(line, runs, trans, lines)}</th>
        <td>{values.length > 0 ? text(values.at(-1)!) : "–"}</td>
        <td>{values.length > 0 ? text(least) : "–"}</td>
        <td>{values.length > 0 ? text(most) : "–"}</td>
        <td>{line.bad.length > 0 ? trans._n("%1 point", "%1 points", line.bad.length) : ""}</td>
      </tr>
    );
  };
  return (
    <details
      className="dtrain-runs-values"
      onToggle={(event) => {
        setOpen(event.currentTarget.open);
      }}
    >
      <summary>{trans.__("Values")}</summary>
      {open && (
        <table aria-label={trans.__("Values of %1", figure.title)}>
          <thead>
            <tr>
              <td />
              <th scope="col">{trans.__("Last")}</th>
              <th scope="col">{trans.__("Lowest")}</th>
              <th scope="col">{trans.__("Highest")}</th>
              <th scope="col">{trans.__("Not finite")}</th>
            </tr>
          </thead>
          <tbody>{lines.map(row)}</tbody>
        </table>
      )}
    </details>
  );
}

/** A step; a place between steps has none. */
function steps(value: number): string {
  if (!Number.isInteger(value)) return "";
  return Math.abs(value) >= 1e6 ? `${+(value / 1e6).toFixed(2)}M` : count(value);
}

/** An epoch, with what part of it is done. */
function epochs(value: number): string {
  return `${+value.toFixed(2)}`;
}

/** A moment of a run; those of a short one are told from each other. */
const moments = (value: number): string =>
  value < 60 && value !== 0 ? `${Number(value.toFixed(value < 10 ? 2 : 1))} s` : clock(value);

const ON_X: Record<Axis, (value: number) => string> = { step: steps, time: moments, epoch: epochs };

const ROUND: Record<Exclude<Unit, "number">, (value: number) => string> = {
  percent: (value) => `${+value.toPrecision(3)} %`,
  bytes,
  rate: (value) => `${bytes(value)}/s`,
  celsius: (value) => `${+value.toPrecision(3)} °C`,
  watts: (value) => `${+value.toPrecision(3)} W`,
};
const SHORT: Record<Unit, (value: number) => string> = { ...ROUND, number: short };
const LONG: Record<Unit, (value: number) => string> = { ...ROUND, number };
