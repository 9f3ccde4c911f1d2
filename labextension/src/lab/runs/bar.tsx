/** What is over the table: the filter with the conditions that one can add, the switch, columns, groups and views. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { deleteIcon, refreshIcon } from "@jupyterlab/ui-components";
import { type JSX, useId, useState } from "react";
import { OUTCOMES } from "../../generated";
import { outcomeWords } from "../../outcome";
import { h } from "../jsx";
import type { RunListing, StoredRun, TableView } from "../messages";
import { Tool } from "../section";
import { ColumnChooser } from "./chooser";
import { PLAIN } from "./client";
import { conditionsOf, replaced, toggled, wantedOf } from "./conditions";
import { headOf } from "./heads";
import type { RunList, Wrong } from "./list";
import { Popover } from "./popover";

/** Values that a select offers. */
const OFFERED = 100;

interface Props {
  view: TableView;
  setView: (view: TableView) => void;
  list: RunList;
  trans: TranslationBundle;
  saveView: (name: string) => Promise<void>;
  deleteView: (name: string) => Promise<void>;
}

export function Bar(props: Props & { runs: Iterable<StoredRun> }): JSX.Element {
  const { view, setView, list, trans } = props;
  const { listing } = list;
  const id = useId();
  return (
    <div className="dtrain-runs-bar" role="search" aria-label={trans.__("Stored runs")}>
      <div className="dtrain-runs-filter">
        <input
          type="search"
          spellCheck={false}
          autoComplete="off"
          placeholder={trans.__("Filter: words, lr>1e-3, outcome:error, name~^cnn …")}
          aria-label={trans.__("Filter runs")}
          aria-invalid={list.wrong !== null}
          aria-describedby={list.wrong !== null ? id : undefined}
          value={view.where}
          onChange={(event) => {
            setView({ ...view, where: event.target.value });
          }}
        />
        <Conditions
          where={view.where}
          setWhere={(where) => {
            setView({ ...view, where });
          }}
          {...{ trans, listing }}
          runs={props.runs}
        />
      </div>
      <button
        type="button"
        role="switch"
        className="dtrain-runs-button dtrain-runs-switch"
        aria-checked={view.everything}
        title={trans.__("Also cells that are no trainings: without metrics, and shorter than some seconds")}
        onClick={() => {
          setView({ ...view, everything: !view.everything });
        }}
      >
        <span aria-hidden="true" /> {trans.__("All cells")}
      </button>
      <ColumnChooser
        columns={list.columns}
        usual={view.columns.length === 0}
        choose={(columns) => {
          setView({ ...view, columns });
        }}
        {...{ listing, trans }}
      />
      <GroupBy {...{ view, setView, listing, trans }} />
      <Views {...props} />
      <Tool icon={refreshIcon} label={trans.__("Refresh")} run={() => void list.reload()} />
      {list.wrong === null && listing.hint !== "" && (
        <p className="dtrain-quiet dtrain-runs-wrong" role="status">
          {listing.hint}
        </p>
      )}
      {list.wrong !== null && <Complaint id={id} wrong={list.wrong} where={view.where} />}
    </div>
  );
}

/** What the server could not read, with the place in the filter. */
function Complaint({ id, wrong, where }: { id: string; wrong: Wrong; where: string }): JSX.Element {
  const { place } = wrong;
  const marked = place !== null && place.position < where.length;
  return (
    <p id={id} className="dtrain-trouble dtrain-runs-wrong" role="alert">
      {marked && (
        <code aria-hidden="true">
          {where.slice(Math.max(0, place.position - 40), place.position)}
          <mark>{where.slice(place.position, place.position + Math.max(1, place.length))}</mark>
          {where.slice(place.position + Math.max(1, place.length)).slice(0, 40)}
        </code>
      )}{" "}
      {wrong.words}
    </p>
  );
}

/** Conditions to add to the filter or to take out of it, and what one can write. */
function Conditions(props: {
  where: string;
  setWhere: (where: string) => void;
  listing: RunListing;
  runs: Iterable<StoredRun>;
  trans: TranslationBundle;
}): JSX.Element {
  const { where, setWhere, listing, trans } = props;
  const known = [...props.runs];
  const values = (of: (run: StoredRun) => readonly string[]): string[] =>
    [...new Set(known.flatMap(of))].filter((value) => value !== "").sort();
  const select = (
    field: string,
    label: string,
    all: readonly string[],
    words = (value: string) => value,
  ): JSX.Element => {
    const now = wantedOf(where, field);
    const offered = all.includes(now) || now === "" ? all : [now, ...all];
    return (
      <label>
        <span>{label}</span>
        <select
          value={now}
          disabled={offered.length === 0}
          onChange={(event) => {
            setWhere(replaced(where, field, event.target.value));
          }}
        >
          <option value="">{trans.__("any")}</option>
          {offered.slice(0, OFFERED).map((value) => (
            <option key={value} value={value}>
              {words(value).slice(0, 100)}
            </option>
          ))}
        </select>
      </label>
    );
  };
  const config = listing.configs.find(({ numeric, name }) => numeric && /^\w+$/.test(name))?.name ?? "lr";
  const metric = listing.metrics.find(({ name }) => /^\w+$/.test(name))?.name ?? "loss";
  const examples: [string, string][] = [
    [`${config}>1e-3`, trans.__("a configuration value")],
    [`${metric}<0.5`, trans.__("the last value of a metric")],
    [`${metric}.min<0.5`, trans.__("its lowest; .max for its highest")],
    ["name~^cnn", trans.__("a name by a regular expression")],
    ["age<7d", trans.__("of the last seven days")],
    ["elapsed>5m", trans.__("longer than five minutes")],
    ["-tag:old", trans.__("without a tag")],
    ["note:*", trans.__("with a note")],
    ['"two words"', trans.__("text in name, note, tags or cell")],
    ["outcome:error|lost", trans.__("one or the other")],
  ];
  const present = conditionsOf(where);
  return (
    <Popover label={trans.__("Conditions to filter by")} words="?" className="dtrain-runs-help">
      {() => (
        <div className="dtrain-runs-conditions">
          <div className="dtrain-runs-selects">
            {select("outcome", trans.__("Outcome"), Object.keys(OUTCOMES), outcomeWords)}
            {select(
              "world",
              trans.__("World"),
              values((run) => [run.world]),
            )}
            {select(
              "tag",
              trans.__("Tag"),
              values((run) => run.tags),
            )}
            {select(
              "group",
              trans.__("Group"),
              values((run) => [run.group]),
            )}
          </div>
          <p className="dtrain-quiet">
            {trans.__("All conditions hold at once. Click one to add it, or to take it out:")}
          </p>
          <ul>
            {examples.map(([condition, words]) => (
              <li key={condition}>
                <button
                  type="button"
                  aria-pressed={present.includes(condition)}
                  onClick={() => {
                    setWhere(toggled(where, condition));
                  }}
                >
                  <code>{condition}</code>
                </button>{" "}
                {words}
              </li>
            ))}
          </ul>
        </div>
      )}
    </Popover>
  );
}

function GroupBy({
  view,
  setView,
  listing,
  trans,
}: Pick<Props, "view" | "setView" | "trans"> & { listing: RunListing }): JSX.Element {
  const fields = ["group", "world", "notebook", "heading", "outcome"] as const;
  const configs = listing.configs.filter((one) => one.distinct > 1).map((one) => `config:${one.name}`);
  const keys: string[] = [...fields, ...configs.slice(0, OFFERED)];
  if (view.group !== "" && !keys.includes(view.group)) keys.push(view.group);
  return (
    <select
      aria-label={trans.__("Group by")}
      title={trans.__("Group by")}
      className="dtrain-runs-group-by"
      value={view.group}
      onChange={(event) => {
        setView({ ...view, group: event.target.value });
      }}
    >
      <option value="">{trans.__("Not grouped")}</option>
      {keys.map((key) => (
        <option key={key} value={key}>
          {trans.__("By %1", headOf(key, trans).name.slice(0, 60))}
        </option>
      ))}
    </select>
  );
}

/** Saved views: a click shows one. */
function Views({ view, setView, list, trans, saveView, deleteView }: Props): JSX.Element {
  const { views } = list.listing;
  const [name, setName] = useState("");
  const current = views.find((one) => sameView(one, view));
  const plain = sameView(view, PLAIN);
  const known = views.some((one) => one.name === name.trim());
  return (
    <Popover
      label={trans.__("Saved views")}
      words={current === undefined ? trans.__("Views") : trans.__("View: %1", current.name)}
      className="dtrain-runs-views"
    >
      {(close) => (
        <div className="dtrain-runs-conditions">
          {views.length === 0 && (
            <p className="dtrain-quiet">
              {trans.__("A view is a filter with an order, columns and groups. Save this one to come back to it.")}
            </p>
          )}
          <ul aria-label={trans.__("Saved views")}>
            {views.map((one) => (
              <li key={one.name} className="dtrain-runs-view">
                <button
                  type="button"
                  aria-pressed={one === current}
                  title={one.where}
                  onClick={() => {
                    setView({ ...one, name: "" });
                    close();
                  }}
                >
                  {one.name}
                </button>
                <Tool
                  icon={deleteIcon}
                  label={trans.__("Delete view %1", one.name)}
                  run={() => void deleteView(one.name)}
                />
              </li>
            ))}
          </ul>
          <form
            onSubmit={(event) => {
              event.preventDefault();
              if (name.trim() === "") return;
              void saveView(name.trim());
              setName("");
              close();
            }}
          >
            <input
              maxLength={60}
              placeholder={trans.__("Name of this view")}
              aria-label={trans.__("Name of this view")}
              className="dtrain-runs-field"
              value={name}
              onChange={(event) => {
                setName(event.target.value);
              }}
            />
            <button type="submit" className="dtrain-runs-button" disabled={name.trim() === ""}>
              {known ? trans.__("Replace") : trans.__("Save")}
            </button>
          </form>
          <button
            type="button"
            className="dtrain-runs-button"
            disabled={plain}
            onClick={() => {
              setView(PLAIN);
              close();
            }}
          >
            {trans.__("Back to the usual view")}
          </button>
        </div>
      )}
    </Popover>
  );
}

/** Whether two views show the same, whatever they are called. */
export function sameView(one: TableView, other: TableView): boolean {
  const shown = ({ where, sort, columns, group, everything }: TableView): string =>
    JSON.stringify([where.trim(), sort, columns, group, everything]);
  return shown(one) === shown(other);
}
