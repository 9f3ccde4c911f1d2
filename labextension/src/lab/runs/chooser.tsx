/** The choice of the table's columns: fields, configuration values, and metrics in one of several ways. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { caretDownIcon, caretUpIcon, closeIcon } from "@jupyterlab/ui-components";
import { type JSX, useState } from "react";
import { h } from "../jsx";
import type { ColumnChoice, RunListing } from "../messages";
import { Tool } from "../section";
import { columnOf, FIELDS, isScore, keyOf, withColumn, type Column } from "./columns";
import { headOf } from "./heads";
import { Popover } from "./popover";

/** Names that are listed of each kind; a search finds the others. */
const LISTED = 60;

/** Metrics that the choice of another's best step offers. */
const OTHERS = 40;

interface Props {
  listing: RunListing;
  /** Those of the table, in its order. */
  columns: readonly string[];
  /** Empty for the usual ones. */
  choose: (columns: string[]) => void;
  /** Whether the table has the usual columns. */
  usual: boolean;
  trans: TranslationBundle;
}

export function ColumnChooser(props: Props): JSX.Element {
  return (
    <Popover label={props.trans.__("Choose columns")} words={props.trans.__("Columns")}>
      {() => <Choices {...props} />}
    </Popover>
  );
}

function Choices({ listing, columns, choose, usual, trans }: Props): JSX.Element {
  const [search, setSearch] = useState("");
  const sought = search.trim().toLowerCase();
  const matching = <T extends { name: string }>(all: readonly T[]): T[] =>
    all.filter(({ name }) => name.toLowerCase().includes(sought));
  const set = (column: Column, on: boolean): void => {
    const key = keyOf(column);
    choose(on ? withColumn(columns, key) : columns.filter((one) => one !== key));
  };
  const move = (from: number, to: number): void => {
    const next = [...columns];
    next.splice(to, 0, ...next.splice(from, 1));
    choose(next);
  };
  const fields = FIELDS.map((name) => ({ column: { kind: "field", name } as const, head: headOf(name, trans) })).filter(
    ({ head }) => head.name.toLowerCase().includes(sought),
  );
  const configs = matching(listing.configs);
  const metrics = matching(listing.metrics);
  const check = (column: Column, words: string, more = ""): JSX.Element => (
    <label key={keyOf(column)} title={words.slice(0, 300)}>
      <input
        type="checkbox"
        checked={columns.includes(keyOf(column))}
        onChange={(event) => {
          set(column, event.target.checked);
        }}
      />
      <span>{words.slice(0, 300)}</span>
      {more !== "" && <small>{more}</small>}
    </label>
  );
  const left = (all: readonly unknown[]): JSX.Element | false =>
    all.length > LISTED && <p className="dtrain-quiet">{trans.__("%1 more: search for them", all.length - LISTED)}</p>;
  return (
    <div className="dtrain-runs-chooser">
      <p>
        <input
          type="search"
          placeholder={trans.__("Find a column")}
          aria-label={trans.__("Find a column")}
          value={search}
          onChange={(event) => {
            setSearch(event.target.value);
          }}
        />
        <button
          type="button"
          className="dtrain-runs-button"
          disabled={usual}
          onClick={() => {
            choose([]);
          }}
        >
          {trans.__("Usual columns")}
        </button>
      </p>
      {sought === "" && columns.length > 0 && (
        <details>
          <summary>
            {trans.__("In the table")} <span className="dtrain-count">{columns.length}</span>
          </summary>
          <ol aria-label={trans.__("Columns of the table")}>
            {columns.map((key, index) => {
              const { how, name } = headOf(key, trans);
              const words = `${how} ${name.slice(0, 300)}`.trim();
              return (
                <li key={key}>
                  <span title={words}>{words}</span>
                  <Tool
                    icon={caretUpIcon}
                    label={trans.__("Move %1 to the left", words)}
                    disabled={index === 0}
                    run={() => {
                      move(index, index - 1);
                    }}
                  />
                  <Tool
                    icon={caretDownIcon}
                    label={trans.__("Move %1 to the right", words)}
                    disabled={index === columns.length - 1}
                    run={() => {
                      move(index, index + 1);
                    }}
                  />
                  <Tool
                    icon={closeIcon}
                    label={trans.__("Take %1 out of the table", words)}
                    run={() => {
                      choose(columns.filter((one) => one !== key));
                    }}
                  />
                </li>
              );
            })}
          </ol>
        </details>
      )}
      {metrics.length > 0 && (
        <fieldset>
          <legend>{trans.__("Metrics")}</legend>
          {metrics.slice(0, LISTED).map(({ name }) => (
            <Metric key={name} {...{ name, columns, set, trans }} others={listing.metrics} />
          ))}
          {left(metrics)}
        </fieldset>
      )}
      {configs.length > 0 && (
        <fieldset>
          <legend>{trans.__("Configuration")}</legend>
          {configs
            .slice(0, LISTED)
            .map(({ name, distinct }) =>
              check({ kind: "config", name }, name, trans._n("%1 value", "%1 values", distinct)),
            )}
          {left(configs)}
        </fieldset>
      )}
      {fields.length > 0 && (
        <fieldset>
          <legend>{trans.__("Fields")}</legend>
          {fields.map(({ column, head }) => check(column, `${head.how} ${head.name}`.trim()))}
        </fieldset>
      )}
      {metrics.length + configs.length + fields.length === 0 && (
        <p className="dtrain-quiet">{trans.__("No listed run has such a column.")}</p>
      )}
    </div>
  );
}

/** A metric: its last, lowest and highest value, and that at the best step of another. */
function Metric({
  name,
  others,
  columns,
  set,
  trans,
}: {
  name: string;
  others: readonly ColumnChoice[];
  columns: readonly string[];
  set: (column: Column, on: boolean) => void;
  trans: TranslationBundle;
}): JSX.Element {
  const words = { last: trans.__("last"), min: trans.__("lowest"), max: trans.__("highest") };
  const at = columns.flatMap((key) => {
    const column = columnOf(key);
    return column?.kind === "at" && column.name === name ? [column] : [];
  });
  return (
    <div className="dtrain-runs-metric" role="group" aria-label={name.slice(0, 300)}>
      <span title={name.slice(0, 300)}>{name.slice(0, 300)}</span>
      {(["last", "min", "max"] as const).map((how) => {
        const column: Column = { kind: "metric", name, how };
        const on = columns.includes(keyOf(column));
        return (
          <button
            key={how}
            type="button"
            aria-pressed={on}
            aria-label={trans.__("%1 %2", words[how], name.slice(0, 300))}
            onClick={() => {
              set(column, !on);
            }}
          >
            {words[how]}
          </button>
        );
      })}
      <select
        aria-label={trans.__("%1 at the best step of another metric", name.slice(0, 300))}
        title={trans.__("Its value at the best step of another metric")}
        value=""
        onChange={(event) => {
          const column = columnOf(event.target.value);
          if (column !== null) set(column, !columns.includes(event.target.value));
        }}
      >
        <option value="">{at.length > 0 ? trans.__("at … (%1)", at.length) : trans.__("at …")}</option>
        {others
          .filter((other) => other.name !== name)
          .slice(0, OTHERS)
          .flatMap((other) =>
            (isScore(other.name) ? (["max", "min"] as const) : (["min", "max"] as const)).map((how) => {
              const key = keyOf({ kind: "at", name, other: other.name, how });
              return (
                <option key={key} value={key}>
                  {columns.includes(key) ? "✓ " : ""}
                  {trans.__("at the %1 %2", words[how], other.name.slice(0, 100))}
                </option>
              );
            }),
          )}
      </select>
    </div>
  );
}
