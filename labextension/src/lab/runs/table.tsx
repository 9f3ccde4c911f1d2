/** The table of stored runs. A row has a checkbox that puts the run into the charts, and fields that can be edited. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { deleteIcon, downloadIcon, lockIcon } from "@jupyterlab/ui-components";
import { type JSX, type ReactNode, useEffect, useRef, useState } from "react";
import { clock, number } from "../../format";
import type { Theme } from "../../theme";
import { h } from "../jsx";
import type { StoredRun } from "../messages";
import { Mark } from "../rankMarks";
import { Tool, useNow } from "../section";
import { elapsedOf, endingOfStored, labelOf, tagsOf, type Changes } from "./client";
import { styleOf } from "./colours";
import type { Style } from "./lines";
import { clicked, sorted, type Order, type SortKey } from "./sorting";

export interface RowActions {
  choose: (id: number) => void;
  edit: (id: number, changes: Changes) => Promise<void>;
  remove: (run: StoredRun) => void;
  download: (run: StoredRun) => void;
  /** List only the runs with this tag. */
  only: (tag: string) => void;
}

interface Props {
  runs: readonly StoredRun[];
  chosen: ReadonlySet<number>;
  actions: RowActions;
  theme: Theme;
  trans: TranslationBundle;
}

export function RunTable({
  runs,
  chosen,
  actions,
  theme,
  trans,
  order,
  setOrder,
}: Props & {
  order: Order;
  setOrder: (order: Order) => void;
}): JSX.Element {
  const now = useNow(1000) / 1000;
  const heads: [SortKey, string][] = [
    ["name", trans.__("Name")],
    ["run", trans.__("Run")],
    ["outcome", trans.__("Outcome")],
    ["started", trans.__("Started")],
    ["elapsed", trans.__("Elapsed")],
    ["ranks", trans.__("Ranks")],
    ["last", trans.__("Last loss")],
    ["best", trans.__("Best loss")],
    ["tags", trans.__("Tags")],
    ["note", trans.__("Note")],
  ];
  return (
    <table className="dtrain-runs-table" aria-label={trans.__("Stored runs")}>
      <thead>
        <tr>
          <th scope="col">
            <span className="dtrain-runs-hidden">{trans.__("In charts")}</span>
          </th>
          {heads.map(([key, words]) => (
            <th
              key={key}
              scope="col"
              data-key={key}
              aria-sort={order.key === key ? (order.descending ? "descending" : "ascending") : "none"}
            >
              <button
                type="button"
                onClick={() => {
                  setOrder(clicked(order, key));
                }}
              >
                {words} <span aria-hidden="true">{order.key === key ? (order.descending ? "▾" : "▴") : ""}</span>
              </button>
            </th>
          ))}
          <th scope="col">
            <span className="dtrain-runs-hidden">{trans.__("Actions")}</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {sorted(runs, order).map((run) => (
          <Row key={run.id} inCharts={chosen.has(run.id)} {...{ run, now, actions, theme, trans }} />
        ))}
      </tbody>
    </table>
  );
}

function Row({
  run,
  inCharts,
  now,
  actions,
  theme,
  trans,
}: Omit<Props, "runs" | "chosen"> & { run: StoredRun; inCharts: boolean; now: number }): JSX.Element {
  const label = labelOf(run);
  const [loss] = run.losses;
  const { outcome, words, title } = endingOfStored(run);
  return (
    <tr data-run={run.id} data-chosen={inCharts}>
      <td>
        <label>
          <input
            type="checkbox"
            checked={inCharts}
            aria-label={trans.__("Show run %1 in the charts", label)}
            onChange={() => {
              actions.choose(run.id);
            }}
          />
          {inCharts && <Swatch theme={theme} style={styleOf(run.id)} />}
        </label>
      </td>
      <td className="dtrain-runs-name">
        <Editable
          text={run.name}
          label={trans.__("Name of run %1", label)}
          title={run.source}
          empty={trans.__("no name")}
          save={(name) => actions.edit(run.id, { name })}
        />
      </td>
      <td>{label}</td>
      <td data-outcome={outcome} title={title}>
        <Mark look={outcome === "nan" ? "error" : outcome} /> {words}
      </td>
      <td title={new Date(run.started * 1000).toLocaleString()}>{startedAt(run.started, now)}</td>
      <td className="dtrain-runs-number">{clock(elapsedOf(run))}</td>
      <td className="dtrain-runs-number">{run.ranks}</td>
      <td className="dtrain-runs-number" title={lossTitle(run, (one) => one.last)}>
        {loss === undefined ? "" : number(loss.last ?? NaN)}
      </td>
      <td className="dtrain-runs-number" title={lossTitle(run, (one) => one.best)}>
        {loss?.best == null ? "" : number(loss.best)}
      </td>
      <td>
        <Editable
          text={run.tags.join(", ")}
          label={trans.__("Tags of run %1, with commas between them", label)}
          empty={trans.__("add tags")}
          save={(tags) => actions.edit(run.id, { tags: tagsOf(tags) })}
        >
          {run.tags.map((tag) => (
            <button
              key={tag}
              type="button"
              className="dtrain-runs-tag"
              title={trans.__("List only runs with this tag")}
              onClick={() => {
                actions.only(tag);
              }}
            >
              {tag}
            </button>
          ))}
        </Editable>
      </td>
      <td className="dtrain-runs-note">
        <Editable
          text={run.note}
          label={trans.__("Note on run %1", label)}
          empty={trans.__("add a note")}
          save={(note) => actions.edit(run.id, { note })}
        />
      </td>
      <td className="dtrain-runs-tools">
        <button
          type="button"
          className="dtrain-tool"
          aria-pressed={run.kept}
          aria-label={trans.__("Keep run %1 forever", label)}
          title={
            run.kept
              ? trans.__("This run is kept forever. Click to let it expire like other runs.")
              : trans.__("Keep forever")
          }
          onClick={() => void actions.edit(run.id, { kept: !run.kept })}
        >
          <lockIcon.react tag="span" width="14px" height="14px" />
        </button>
        <Tool
          icon={downloadIcon}
          label={trans.__("Save the points of run %1 as CSV", label)}
          run={() => {
            actions.download(run);
          }}
        />
        <Tool
          icon={deleteIcon}
          label={trans.__("Delete run %1…", label)}
          disabled={run.kept || run.outcome === "running"}
          run={() => {
            actions.remove(run);
          }}
        />
      </td>
    </tr>
  );
}

/** All losses of a run, one a line. */
function lossTitle(run: StoredRun, value: (loss: StoredRun["losses"][number]) => number | null): string {
  return run.losses.map((loss) => `${loss.name}: ${number(value(loss) ?? NaN)}`).join("\n");
}

/** The time of today, else the day and the time. */
function startedAt(started: number, now: number): string {
  const date = new Date(started * 1000);
  const time = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === new Date(now * 1000).toDateString()) return time;
  return `${date.toLocaleDateString(undefined, { day: "numeric", month: "short" })} ${time}`;
}

/** A piece of a line, as the charts draw it. */
export function Swatch({ theme, style }: { theme: Theme; style: Style }): JSX.Element {
  return (
    <svg className="dtrain-runs-swatch" viewBox="0 0 26 6" aria-hidden="true">
      <path
        d="M0 3h26"
        stroke={theme.rank(style.colour)}
        strokeDasharray={theme.dashOfRun(style.dash).join(" ")}
        strokeWidth="2.5"
      />
    </svg>
  );
}

/** Text that becomes a field when one presses it. Enter or leaving the field saves; Escape leaves it as it was. */
function Editable(props: {
  text: string;
  label: string;
  empty: string;
  title?: string;
  save: (text: string) => Promise<void>;
  /** Shown in front, in place of the text. */
  children?: ReactNode;
}): JSX.Element {
  const { text, label, empty, save, children } = props;
  const [edited, setEdited] = useState<string | null>(null);
  const button = useRef<HTMLButtonElement>(null);
  /** The text that the field began with; null while there is none. */
  const begun = useRef<string | null>(null);
  const back = useRef(false);
  useEffect(() => {
    // After Enter or Escape the keyboard goes on from where it was.
    if (edited === null && back.current) button.current?.focus();
    back.current = false;
  }, [edited]);
  const finish = (keep: boolean): void => {
    // A field that disappears may lose the focus, and so would finish twice.
    if (begun.current === null) return;
    if (keep && edited !== null && edited.trim() !== begun.current) void save(edited.trim());
    begun.current = null;
    setEdited(null);
  };
  if (edited !== null) {
    return (
      <input
        className="dtrain-runs-field"
        value={edited}
        aria-label={label}
        autoFocus
        onChange={(event) => {
          setEdited(event.target.value);
        }}
        onBlur={() => {
          finish(true);
        }}
        onKeyDown={(event) => {
          if (event.key !== "Enter" && event.key !== "Escape") return;
          event.stopPropagation();
          // Else the same key would press the button that gets the focus back.
          event.preventDefault();
          back.current = true;
          finish(event.key === "Enter");
        }}
      />
    );
  }
  const instead = children !== undefined && text !== "";
  return (
    <span className="dtrain-runs-editable">
      {instead && children}
      <button
        ref={button}
        type="button"
        className="dtrain-runs-edit"
        data-empty={text === "" || instead}
        aria-label={`${label}: ${text || empty}`}
        title={props.title ?? label}
        onClick={() => {
          begun.current = text;
          setEdited(text);
        }}
      >
        {instead ? "✎" : text || empty}
      </button>
    </span>
  );
}
