/** The form in which a person names a stored run, writes a note, sets tags, keeps the run or deletes it. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { type JSX, useId, useState } from "react";
import { h } from "./jsx";
import type { StoredRun } from "./messages";
import type { Changes } from "./runs/client";

export function RunForm(props: {
  run: StoredRun;
  trans: TranslationBundle;
  /** Throws an Error that says why the changes cannot be. */
  save: (changes: Changes) => Promise<void>;
  close: () => void;
  remove: () => void;
}): JSX.Element {
  const { run, trans } = props;
  const id = useId();
  const [name, setName] = useState(run.name);
  const [tags, setTags] = useState(run.tags.join(", "));
  const [note, setNote] = useState(run.note);
  const [kept, setKept] = useState(run.kept);
  const [problem, setProblem] = useState("");
  const save = async (): Promise<void> => {
    const words = tags.split(",").map((tag) => tag.trim());
    const changes: Changes = { note, kept, tags: words.filter((tag) => tag !== "") };
    // The name that a run has from its cell does not become its own.
    if (name !== run.name) changes.name = name;
    try {
      await props.save(changes);
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <form
      className="dtrain-run-form"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape") props.close();
      }}
    >
      <label htmlFor={`${id}-name`}>{trans.__("Name")}</label>
      <input
        id={`${id}-name`}
        className="jp-mod-styled"
        value={name}
        maxLength={60}
        autoFocus
        onChange={(event) => {
          setName(event.target.value);
        }}
      />
      <label htmlFor={`${id}-tags`}>{trans.__("Tags")}</label>
      <input
        id={`${id}-tags`}
        className="jp-mod-styled"
        value={tags}
        placeholder={trans.__("one, another")}
        onChange={(event) => {
          setTags(event.target.value);
        }}
      />
      <label htmlFor={`${id}-note`}>{trans.__("Note")}</label>
      <textarea
        id={`${id}-note`}
        className="jp-mod-styled"
        rows={3}
        value={note}
        onChange={(event) => {
          setNote(event.target.value);
        }}
      />
      <label className="dtrain-run-kept">
        <input
          type="checkbox"
          checked={kept}
          onChange={(event) => {
            setKept(event.target.checked);
          }}
        />
        {trans.__("Keep it for ever")}
      </label>
      {problem !== "" && (
        <p className="dtrain-trouble" role="alert">
          {problem}
        </p>
      )}
      <div className="dtrain-tools-row">
        <button type="submit" className="dtrain-small">
          {trans.__("Save")}
        </button>
        <button type="button" className="dtrain-small" onClick={props.close}>
          {trans.__("Cancel")}
        </button>
        <button
          type="button"
          className="dtrain-small dtrain-delete"
          disabled={run.outcome === "running" || run.kept}
          title={run.kept ? trans.__("It is kept: clear that and save first.") : undefined}
          onClick={props.remove}
        >
          {trans.__("Delete…")}
        </button>
      </div>
    </form>
  );
}
