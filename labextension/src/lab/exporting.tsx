/** The dialog that makes a job of a notebook: where the job goes, its file, its size and what that place must know. */

import { Clipboard, Dialog, Notification, ReactWidget, showDialog } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import { HTMLSelect } from "@jupyterlab/ui-components";
import { type JSX, useState } from "react";
import type { ExportTarget, ExportTargets, WrittenJob } from "../generated";
import type { Actions } from "./actions";
import { MAGIC } from "./cellTarget";
import { request } from "./connection";
import { bodyOf, type Wanted } from "./exportFields";
import { h } from "./jsx";

const FIRST: Wanted = { target: "slurm", file: "", ranks: "", nodes: "", local: false, force: false, settings: {} };

/** Settings that are shown at once; the others are under "More". */
const MAIN = 2;

/** Ask what job to make of the notebook in the file `path`, and make it. What was typed stays after an error. */
export async function exportNotebook(actions: Actions, trans: TranslationBundle, path: string): Promise<void> {
  const { settings } = actions.worlds;
  await actions.attempt(async () => {
    const { targets } = await request<ExportTargets>(settings, "GET", ["export"]);
    let wanted = FIRST;
    let problem = "";
    for (;;) {
      const form = new ExportForm(targets, wanted, path, problem, trans);
      const answer = await showDialog({
        title: trans.__("Export as a job"),
        body: form,
        buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__("Export") })],
        focusNodeSelector: problem === "" ? "select" : "input",
      });
      if (!answer.button.accept) return;
      ({ wanted } = form);
      const target = targets.find(({ name }) => name === wanted.target);
      if (target === undefined) return;
      try {
        const made = await request<WrittenJob>(settings, "POST", ["export"], bodyOf(path, wanted, target, trans));
        tell(made, trans);
        return;
      } catch (error) {
        problem = (error as Error).message;
      }
    }
  });
}

/** The name of a setting as a label: `cpus_per_task` is "Cpus per task". */
function labelOf(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
}

function tell({ words, file }: WrittenJob, trans: TranslationBundle): void {
  const line = /^Start it with: (.*)$/m.exec(words)?.[1] ?? file;
  Notification.success(words, {
    autoClose: false,
    actions: [
      {
        label: trans.__("Copy the line that starts it"),
        callback: () => {
          Clipboard.copyToSystem(line);
        },
      },
    ],
  });
}

class ExportForm extends ReactWidget {
  constructor(
    private targets: readonly ExportTarget[],
    /** The present contents of the fields. */
    public wanted: Wanted,
    private path: string,
    private problem: string,
    private trans: TranslationBundle,
  ) {
    super();
    this.addClass("dtrain-form");
  }

  protected override render(): JSX.Element {
    return (
      <Form
        targets={this.targets}
        first={this.wanted}
        path={this.path}
        problem={this.problem}
        trans={this.trans}
        changed={(wanted) => {
          this.wanted = wanted;
        }}
      />
    );
  }
}

function Form(props: {
  targets: readonly ExportTarget[];
  first: Wanted;
  path: string;
  problem: string;
  trans: TranslationBundle;
  changed: (wanted: Wanted) => void;
}): JSX.Element {
  const { targets, trans, path } = props;
  const [wanted, setWanted] = useState(props.first);
  const change = (part: Partial<Wanted>): void => {
    const next = { ...wanted, ...part };
    setWanted(next);
    props.changed(next);
  };
  const target = targets.find(({ name }) => name === wanted.target) ?? targets[0];
  const name = path.slice(path.lastIndexOf("/") + 1).replace(/\.ipynb$/, "");
  const text = (id: "file" | "ranks" | "nodes", label: string, placeholder: string): JSX.Element => (
    <div>
      <label htmlFor={`dtrain-export-${id}`}>{label}</label>
      <input
        id={`dtrain-export-${id}`}
        className="jp-mod-styled"
        value={wanted[id]}
        placeholder={placeholder}
        onChange={(event) => {
          change({ [id]: event.target.value });
        }}
      />
    </div>
  );
  const check = (id: "local" | "force", label: string): JSX.Element => (
    <label className="dtrain-check">
      <input
        type="checkbox"
        checked={wanted[id]}
        onChange={(event) => {
          change({ [id]: event.target.checked });
        }}
      />
      {label}
    </label>
  );
  const setting = (one: ExportTarget["settings"][number]): JSX.Element => {
    const key = `${wanted.target}.${one.name}`;
    return (
      <div key={key}>
        <label htmlFor={`dtrain-export-${key}`}>{labelOf(one.name)}</label>
        <input
          id={`dtrain-export-${key}`}
          className="jp-mod-styled"
          title={one.help}
          value={wanted.settings[key] ?? ""}
          placeholder={one.default === "" ? one.help : one.default}
          onChange={(event) => {
            change({ settings: { ...wanted.settings, [key]: event.target.value } });
          }}
        />
      </div>
    );
  };
  const settings = target?.settings ?? [];
  return (
    <div className="dtrain-fields">
      <div>
        <label htmlFor="dtrain-export-target">{trans.__("For")}</label>
        <HTMLSelect
          id="dtrain-export-target"
          value={wanted.target}
          onChange={(event) => {
            change({ target: event.target.value });
          }}
        >
          {targets.map((one) => (
            <option key={one.name} value={one.name}>
              {`${one.name}: ${one.help.replace(/^the script, and /, "")}`}
            </option>
          ))}
        </HTMLSelect>
      </div>
      {text("file", trans.__("File"), `${name}${target?.suffix ?? ""}`)}
      {text("ranks", trans.__("Ranks"), trans.__("as in the notebook"))}
      {text("nodes", trans.__("Nodes"), trans.__("as in the notebook"))}
      {settings.slice(0, MAIN).map(setting)}
      {settings.length > MAIN && (
        <details>
          <summary>{trans.__("More options")}</summary>
          <div className="dtrain-fields">{settings.slice(MAIN).map(setting)}</div>
        </details>
      )}
      {check("local", trans.__("Also the cells without %1 that the job needs", MAGIC))}
      {check("force", trans.__("Replace files that exist"))}
      <p className="dtrain-problem" role="alert">
        {props.problem}
      </p>
    </div>
  );
}
