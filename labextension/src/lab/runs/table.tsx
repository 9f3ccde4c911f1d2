/**
 * The table of stored runs. A row has a checkbox that puts the run into the charts, its name, which opens its page, the
 * columns that a person has chosen, and fields that can be edited.
 */

import type { TranslationBundle } from "@jupyterlab/translation";
import { deleteIcon, downloadIcon, lockIcon } from "@jupyterlab/ui-components";
import { type JSX, type ReactNode, memo, useEffect, useRef, useState } from "react";
import { clock, number } from "../../format";
import type { Theme } from "../../theme";
import { Fragment, h } from "../jsx";
import type { RunGroup, StoredRun } from "../messages";
import { Mark } from "../rankMarks";
import { Tool, useNow } from "../section";
import { elapsedOf, endingOfStored, labelOf, tagsOf, type Changes } from "./client";
import { styleOf } from "./colours";
import { columnOf, valueOf } from "./columns";
import { headOf, wordsOf } from "./heads";
import type { Style } from "./lines";
import type { RunList } from "./list";
import { clicked, placeOf } from "./sorting";

/** Characters of a text in a cell; its title has more of them. */
const SHOWN = 120;
const TITLE = 2000;

/** Characters of a world's name in a row. */
const WORLD = 18;

export interface RowActions {
  /** Put runs into the charts, or take them out. */
  choose: (ids: readonly number[], on: boolean) => void;
  /** Show the page of a run. */
  open: (id: number) => void;
  edit: (id: number, changes: Changes) => Promise<void>;
  remove: (run: StoredRun) => void;
  download: (run: StoredRun) => void;
  /** List only the runs with this tag. */
  only: (tag: string) => void;
}

interface Props {
  list: RunList;
  chosen: ReadonlySet<number>;
  sort: readonly string[];
  setSort: (sort: string[]) => void;
  actions: RowActions;
  theme: Theme;
  trans: TranslationBundle;
}

export function RunTable({ list, chosen, sort, setSort, actions, theme, trans }: Props): JSX.Element {
  const { columns, asked } = list;
  const { runs, groups } = list.listing;
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const current = useRef(actions);
  current.current = actions;
  // Rows are drawn again only if something in them has changed, so they need functions that stay the same.
  const [stable] = useState<RowActions>(() => ({
    choose: (...what) => {
      current.current.choose(...what);
    },
    open: (id) => {
      current.current.open(id);
    },
    edit: (...what) => current.current.edit(...what),
    remove: (run) => {
      current.current.remove(run);
    },
    download: (run) => {
      current.current.download(run);
    },
    only: (tag) => {
      current.current.only(tag);
    },
  }));
  const key = columns.join("\n");
  const rows = (some: readonly StoredRun[]): JSX.Element[] =>
    some.map((run) => (
      <Row
        key={run.id}
        inCharts={chosen.has(run.id)}
        columnsKey={key}
        actions={stable}
        {...{ run, columns, asked, theme, trans }}
      />
    ));
  const grouped = groups.length > 0 && runs.every((run) => run.place !== null);
  return (
    <table className="dtrain-runs-table" aria-label={trans.__("Stored runs")}>
      <thead>
        <tr>
          <th scope="col">
            <AllBox
              label={trans.__("Show all listed runs in the charts")}
              ids={runs.map((run) => run.id)}
              {...{ chosen }}
              choose={actions.choose}
            />
          </th>
          {["name", ...columns].map((one) => (
            <Head key={one} column={one} {...{ sort, setSort, trans }} numeric={isNumeric(list, one)} />
          ))}
          <th scope="col">
            <span className="dtrain-runs-hidden">{trans.__("Actions")}</span>
          </th>
        </tr>
      </thead>
      {grouped ? (
        groups.map((one, place) => {
          const own = runs.filter((run) => run.place === place);
          if (own.length === 0) return null;
          const open = !closed.has(one.words);
          return (
            <tbody key={one.words}>
              <GroupRow
                group={one}
                runs={own}
                toggle={() => {
                  const next = new Set(closed);
                  if (!next.delete(one.words)) next.add(one.words);
                  setClosed(next);
                }}
                choose={actions.choose}
                {...{ open, columns, asked, chosen, trans }}
              />
              {open && rows(own)}
            </tbody>
          );
        })
      ) : (
        <tbody>{rows(runs)}</tbody>
      )}
    </table>
  );
}

/** Whether a column's values are numbers, which stand at the right. */
function isNumeric(list: RunList, key: string): boolean {
  const column = columnOf(key);
  if (column === null) return false;
  if (column.kind === "field") return ["elapsed", "ranks", "number", "last loss", "lowest loss"].includes(column.name);
  if (column.kind !== "config") return true;
  return list.listing.columns.find((one) => one.key === key)?.numeric === true;
}

function Head(props: {
  column: string;
  sort: readonly string[];
  setSort: (sort: string[]) => void;
  numeric: boolean;
  trans: TranslationBundle;
}): JSX.Element {
  const { column, sort, setSort, numeric, trans } = props;
  const { how, name } = headOf(column, trans);
  const place = placeOf(sort, column);
  const words = wordsOf(column, trans);
  return (
    <th
      scope="col"
      data-key={column}
      className={numeric ? "dtrain-runs-number" : ""}
      aria-sort={place === null ? "none" : place.descending ? "descending" : "ascending"}
    >
      <button
        type="button"
        aria-label={words.slice(0, 300)}
        title={trans.__("Sort by %1. With Shift: where the order so far is equal.", words.slice(0, 300))}
        onClick={(event) => {
          setSort(clicked(sort, column, event.shiftKey));
        }}
      >
        {how !== "" && <small>{how}</small>}
        <span className="dtrain-runs-head">
          <span>{name.slice(0, 300)}</span>
          <span aria-hidden="true">
            {place === null ? "" : place.descending ? "▾" : "▴"}
            {place !== null && sort.length > 1 && <sup>{place.place + 1}</sup>}
          </span>
        </span>
      </button>
    </th>
  );
}

/** A checkbox for several runs. */
function AllBox(props: {
  ids: readonly number[];
  chosen: ReadonlySet<number>;
  label: string;
  choose: RowActions["choose"];
}): JSX.Element {
  const { ids, chosen, label, choose } = props;
  const box = useRef<HTMLInputElement>(null);
  const some = ids.filter((id) => chosen.has(id)).length;
  const all = ids.length > 0 && some === ids.length;
  useEffect(() => {
    box.current!.indeterminate = some > 0 && !all;
  }, [some, all]);
  return (
    <label title={label}>
      <input
        ref={box}
        type="checkbox"
        aria-label={label}
        checked={all}
        onChange={() => {
          choose(ids, !all);
        }}
      />
    </label>
  );
}

function GroupRow(props: {
  group: RunGroup;
  runs: readonly StoredRun[];
  open: boolean;
  toggle: () => void;
  columns: readonly string[];
  asked: readonly string[];
  chosen: ReadonlySet<number>;
  choose: RowActions["choose"];
  trans: TranslationBundle;
}): JSX.Element {
  const { group, runs, open, toggle, columns, asked, chosen, choose, trans } = props;
  const words = group.words.slice(0, SHOWN);
  return (
    <tr className="dtrain-runs-group-row">
      <td>
        <AllBox
          label={trans.__("Show the runs of group %1 in the charts", words)}
          ids={runs.map((run) => run.id)}
          {...{ chosen, choose }}
        />
      </td>
      <th scope="rowgroup" className="dtrain-runs-name">
        <button type="button" aria-expanded={open} title={group.words.slice(0, TITLE)} onClick={toggle}>
          <span aria-hidden="true">{open ? "▾" : "▸"}</span> {words} <span className="dtrain-count">{group.runs}</span>
        </button>
      </th>
      {columns.map((key) => {
        const mean = group.means[asked.indexOf(key)] ?? null;
        return (
          <td key={key} className="dtrain-runs-number">
            {mean !== null && (
              <span title={trans.__("Mean over the group")}>
                <span aria-hidden="true">⌀ </span>
                <span className="dtrain-runs-hidden">{trans.__("Mean")} </span>
                {String(+mean.toPrecision(4)).replace(/-/g, "−")}
              </span>
            )}
          </td>
        );
      })}
      <td className="dtrain-runs-tools" />
    </tr>
  );
}

interface RowProps {
  run: StoredRun;
  inCharts: boolean;
  columns: readonly string[];
  /** The same as `columns`, to compare. */
  columnsKey: string;
  asked: readonly string[];
  actions: RowActions;
  theme: Theme;
  trans: TranslationBundle;
}

const Row = memo(
  DrawnRow,
  (one, other) =>
    one.run === other.run &&
    one.inCharts === other.inCharts &&
    one.columnsKey === other.columnsKey &&
    one.theme === other.theme,
);

function DrawnRow({ run, inCharts, columns, asked, actions, theme, trans }: RowProps): JSX.Element {
  const label = labelOf(run);
  return (
    <tr data-run={run.id} data-chosen={inCharts}>
      <td>
        <label>
          <input
            type="checkbox"
            checked={inCharts}
            aria-label={trans.__("Show run %1 in the charts", label)}
            onChange={() => {
              actions.choose([run.id], !inCharts);
            }}
          />
          <Swatch theme={theme} style={styleOf(run.id)} />
        </label>
      </td>
      <th scope="row" className="dtrain-runs-name">
        <Editable
          text={run.name}
          label={trans.__("Name of run %1", label)}
          empty={trans.__("no name")}
          save={(name) => actions.edit(run.id, { name })}
          always
        >
          <button
            type="button"
            className="dtrain-runs-open"
            aria-label={trans.__("Open run %1", `${label} ${run.name.slice(0, SHOWN)}`.trim())}
            title={[run.name, run.source].map((text) => text.slice(0, TITLE)).join("\n\n")}
            onClick={() => {
              actions.open(run.id);
            }}
          >
            {(run.name || run.code || label).slice(0, SHOWN)}
          </button>
        </Editable>
        <small title={label}>
          <span className="dtrain-runs-label">{shortLabel(run)}</span>
          {run.code !== "" && run.code !== run.name && <code>{run.code.slice(0, SHOWN)}</code>}
        </small>
      </th>
      {columns.map((key) => (
        <Cell key={key} column={key} {...{ run, asked, actions, trans }} />
      ))}
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

/** `world/3`, where a long name of a world has lost its middle. */
function shortLabel({ world, number: run }: StoredRun): string {
  if (world.length <= WORLD) return `${world}/${run}`;
  const half = Math.floor((WORLD - 1) / 2);
  return `${world.slice(0, half)}…${world.slice(-half)}/${run}`;
}

function Cell({
  run,
  column: key,
  asked,
  actions,
  trans,
}: Pick<RowProps, "run" | "asked" | "actions" | "trans"> & { column: string }): JSX.Element {
  const column = columnOf(key);
  const label = labelOf(run);
  if (column?.kind !== "field") {
    const diverged =
      column?.kind === "metric" &&
      column.how === "last" &&
      run.losses.some((one) => one.name === column.name && one.last === null);
    return <Value value={diverged ? NaN : valueOf(run, key, asked)} exact={column?.kind === "config"} />;
  }
  switch (column.name) {
    case "outcome": {
      const { outcome, words, title } = endingOfStored(run);
      return (
        <td data-outcome={outcome} title={title}>
          <Mark look={outcome === "nan" ? "error" : outcome} /> {words.slice(0, SHOWN)}
        </td>
      );
    }
    case "last loss":
      return <Value value={run.losses[0]?.last === null ? NaN : valueOf(run, key, asked)} title={lossTitle(run)} />;
    case "lowest loss":
      return <Value value={valueOf(run, key, asked)} title={lossTitle(run)} />;
    case "started":
      return <td title={new Date(run.started * 1000).toLocaleString()}>{startedAt(run.started)}</td>;
    case "elapsed":
      return <Elapsed run={run} />;
    case "ranks":
      return <td className="dtrain-runs-number">{run.ranks}</td>;
    case "number":
      return <td className="dtrain-runs-number">{run.number}</td>;
    case "tags":
      return (
        <td className="dtrain-runs-tags">
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
      );
    case "note":
      return (
        <td className="dtrain-runs-note">
          <Editable
            text={run.note}
            label={trans.__("Note on run %1", label)}
            empty={trans.__("add a note")}
            save={(note) => actions.edit(run.id, { note })}
          />
        </td>
      );
    case "notebook":
      return <Value value={run.notebook} shown={run.notebook.replace(/^.*[/\\]/s, "")} />;
    case "run":
      return <Value value={label} />;
    default:
      return <Value value={run[column.name]} />;
  }
}

/** `exact`: a person has written the number, so that it is shown as such. */
function Value({
  value,
  shown,
  title,
  exact = false,
}: {
  value: StoredRun["values"][number];
  shown?: string;
  title?: string;
  exact?: boolean;
}): JSX.Element {
  if (typeof value === "number") {
    return (
      <td className="dtrain-runs-number" title={title ?? `${value}`}>
        {exact ? String(+value.toPrecision(6)).replace(/-/g, "−") : number(value)}
      </td>
    );
  }
  // As Python writes it.
  const whole = typeof value === "boolean" ? (value ? "True" : "False") : (value ?? "");
  const text = shown ?? whole;
  return (
    <td className="dtrain-runs-text" title={whole.slice(0, TITLE)}>
      {text.slice(0, SHOWN)}
    </td>
  );
}

function Elapsed({ run }: { run: StoredRun }): JSX.Element {
  return (
    <td className="dtrain-runs-number">{run.outcome === "running" ? <Running run={run} /> : clock(run.elapsed)}</td>
  );
}

function Running({ run }: { run: StoredRun }): JSX.Element {
  useNow(1000);
  return <Fragment>{clock(elapsedOf(run))}</Fragment>;
}

/** All losses of a run, one a line. */
function lossTitle(run: StoredRun): string {
  const words = (value: number | null): string => number(value ?? NaN);
  return run.losses
    .map(({ name, last, best }) => `${name.slice(0, SHOWN)}: ${words(last)}, lowest ${words(best)}`)
    .join("\n");
}

/** The time of today, else the day and the time. */
function startedAt(started: number): string {
  const date = new Date(started * 1000);
  const time = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === new Date().toDateString()) return time;
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
  save: (text: string) => Promise<void>;
  /** Shown in front, in place of the text. */
  children?: ReactNode;
  /** Whether that is shown without text too. */
  always?: boolean;
}): JSX.Element {
  const { text, label, empty, save, children, always = false } = props;
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
  const instead = children !== undefined && (text !== "" || always);
  return (
    <span className="dtrain-runs-editable">
      {instead && children}
      <button
        ref={button}
        type="button"
        className="dtrain-runs-edit"
        data-empty={text === "" || instead}
        aria-label={`${label}: ${text.slice(0, SHOWN) || empty}`}
        title={label}
        onClick={() => {
          begun.current = text;
          setEdited(text);
        }}
      >
        {instead ? "✎" : text.slice(0, SHOWN) || empty}
      </button>
    </span>
  );
}
