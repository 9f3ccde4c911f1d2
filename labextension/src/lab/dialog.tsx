/**
 * The dialog that starts a world; its fields come from each launcher's description of its options.
 *
 * It stays open until the server has accepted the world, and keeps what was typed. Errors are beside their fields.
 */

import { Dialog, ReactWidget } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import { HTMLSelect } from "@jupyterlab/ui-components";
import { type JSX, useEffect, useState } from "react";
import type { Actions } from "./actions";
import { RequestError } from "./connection";
import { h } from "./jsx";
import type { Launcher, Property } from "./messages";
import { atFirst, choose, fieldsOf, optionsOf, problemOf, problemsOf, type Problems, type Typed } from "./startFields";

/** The dialog's buttons, in their order. */
const CANCEL = 0;
const START = 1;

/** Elements that can have the focus, unless they are disabled or folded. */
const FOCUSABLE = "input, select, textarea, button, summary, a[href]";

/** The typed fields of the worlds that this page has started, by the world's id: to try again. */
const typedFor = new Map<string, Typed>();

/** Ask which world to start, and start it; see `createWorld`. Resolves when the dialog is closed. */
export async function startWorld(
  actions: Actions,
  trans: TranslationBundle,
  options: { folder: string; ranks: number | null; again: string },
): Promise<void> {
  const launchers = await actions.worlds.launchers();
  const first = typedFor.get(options.again) ?? atFirst(launchers, options.ranks);
  const accept = async (typed: Typed): Promise<void> => {
    const launcher = launchers.find((one) => one.name === typed.launcher);
    const wanted = optionsOf(launcher, typed);
    const ranks = launcher?.default_ranks ?? 1;
    typedFor.set(await actions.worlds.start(typed.launcher, wanted, options.folder, ranks), typed);
  };
  const late = (error: unknown): void => {
    actions.fail(error);
  };
  await new StartDialog(new WorldForm(launchers, first, trans), trans, accept, late).launch();
}

/** `accept` throws an Error for a world that the server does not start; `late` gets one that comes after a cancel. */
class StartDialog extends Dialog<unknown> {
  private busy = false;

  constructor(
    private form: WorldForm,
    private trans: TranslationBundle,
    private accept: (typed: Typed) => Promise<void>,
    private late: (error: unknown) => void,
  ) {
    super({
      title: trans.__("Start a world"),
      body: form,
      buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__("Start") })],
      focusNodeSelector: "input",
    });
  }

  override resolve(index: number = START): void {
    if (index === CANCEL) super.resolve(index);
    else if (!this.busy && this.form.check()) void this.start();
  }

  override handleEvent(event: Event): void {
    const { key, shiftKey } = event as KeyboardEvent;
    if (event.type === "keydown" && key === "Tab") {
      // JupyterLab's own wrap skips what React draws after the dialog has opened.
      const all = [...this.node.querySelectorAll<HTMLElement>(FOCUSABLE)].filter(
        (one) => !one.matches(":disabled") && one.checkVisibility(),
      );
      const [from, to] = shiftKey ? [all[0], all.at(-1)] : [all.at(-1), all[0]];
      event.stopPropagation();
      if (document.activeElement !== from) return;
      event.preventDefault();
      to?.focus();
    } else if (event.type !== "keydown" || key !== "Enter" || document.activeElement?.tagName !== "SUMMARY") {
      super.handleEvent(event);
    }
  }

  private async start(): Promise<void> {
    this.setBusy(true);
    try {
      await this.accept(this.form.typed);
      super.resolve(START);
    } catch (error) {
      if (this.isAttached) this.form.tell(error);
      else this.late(error);
    } finally {
      this.setBusy(false);
    }
  }

  private setBusy(busy: boolean): void {
    this.busy = busy;
    this.node.setAttribute("aria-busy", String(busy));
    const label = this.node.querySelector(".jp-mod-accept .jp-Dialog-buttonLabel");
    if (label !== null) label.textContent = busy ? this.trans.__("Starting…") : this.trans.__("Start");
  }
}

class WorldForm extends ReactWidget {
  private problems: Problems = {};
  /** Counts the checks: after each one, the first field that is wrong gets the focus. */
  private checks = 0;

  constructor(
    private launchers: Launcher[],
    /** The fields' present contents. */
    public typed: Typed,
    private trans: TranslationBundle,
  ) {
    super();
    this.addClass("dtrain-form");
  }

  /** Whether all fields can be sent; shows what is wrong with the others. */
  check(): boolean {
    const launcher = this.launchers.find((one) => one.name === this.typed.launcher);
    this.checks += 1;
    this.point(problemsOf(launcher, this.typed, this.trans));
    return Object.keys(this.problems).length === 0;
  }

  /** Show an error of the server beside the field that it names. */
  tell(error: unknown): void {
    this.checks += 1;
    this.point({ [error instanceof RequestError ? error.option : ""]: (error as Error).message });
  }

  private point(problems: Problems): void {
    this.problems = problems;
    this.update();
  }

  protected override render(): JSX.Element {
    return (
      <Form
        launchers={this.launchers}
        first={this.typed}
        problems={this.problems}
        checks={this.checks}
        trans={this.trans}
        changed={(typed, name) => {
          this.typed = typed;
          if (name in this.problems || "" in this.problems) {
            this.point(Object.fromEntries(Object.entries(this.problems).filter(([one]) => one !== name && one !== "")));
          }
        }}
      />
    );
  }
}

function Form(props: {
  launchers: Launcher[];
  first: Typed;
  problems: Problems;
  checks: number;
  trans: TranslationBundle;
  changed: (typed: Typed, name: string) => void;
}): JSX.Element {
  const { launchers, problems, trans } = props;
  const [typed, setTyped] = useState(props.first);
  const [suggested] = useState(props.first.fields.n);
  const [open, setOpen] = useState(false);
  const launcher = launchers.find((one) => one.name === typed.launcher);
  const { main, more } = fieldsOf(launcher);
  const change = (next: Typed, name: string): void => {
    setTyped(next);
    props.changed(next, name);
  };
  const row = ([name, property]: [string, Property]): JSX.Element => (
    <Field
      key={name}
      name={name}
      property={property}
      value={typed.fields[name]}
      problem={problems[name] ?? ""}
      trans={trans}
      set={(value) => {
        const fields = { ...typed.fields, [name]: value };
        // A profile may say how many ranks: a number that nobody has typed gives way.
        if (name === "profile" && [suggested, String(launcher?.default_ranks)].includes(fields.n)) fields.n = "";
        change({ ...typed, fields }, name);
      }}
    />
  );
  useEffect(() => {
    const wrong = [...main, ...more].map(([name]) => name).find((name) => name in problems);
    if (wrong === undefined) return;
    if (more.some(([name]) => name === wrong)) setOpen(true);
    // After the details have opened.
    requestAnimationFrame(() => document.getElementById(`dtrain-${wrong}`)?.focus());
  }, [props.checks]);
  const here =
    launcher === undefined || launcher.cores === 0
      ? ""
      : launcher.gpus > 0
        ? trans._n("%1 GPU available", "%1 GPUs available", launcher.gpus)
        : trans._n("No GPU; %1 CPU core available", "No GPU; %1 CPU cores available", launcher.cores);
  return (
    <div className="dtrain-fields">
      {launchers.length > 1 && (
        <div>
          <label htmlFor="dtrain-launcher">{trans.__("Run on")}</label>
          <HTMLSelect
            id="dtrain-launcher"
            value={typed.launcher}
            onChange={(event) => {
              change(choose(launchers, typed, event.target.value), "launcher");
            }}
          >
            {launchers.map((one) => (
              <option key={one.name} value={one.name}>
                {one.title}
              </option>
            ))}
          </HTMLSelect>
        </div>
      )}
      {main.map(row)}
      <small className="dtrain-here">{here}</small>
      {more.length > 0 && (
        <details
          open={open}
          onToggle={(event) => {
            setOpen(event.currentTarget.open);
          }}
        >
          <summary>{trans.__("More options")}</summary>
          <div className="dtrain-fields">{more.map(row)}</div>
        </details>
      )}
      <p className="dtrain-problem" role="alert">
        {problems[""] ?? ""}
      </p>
    </div>
  );
}

function Field(props: {
  name: string;
  property: Property;
  value: string | boolean | undefined;
  problem: string;
  trans: TranslationBundle;
  set: (value: string | boolean) => void;
}): JSX.Element {
  const { name, property, value, trans, set } = props;
  const [left, setLeft] = useState(false);
  const [bad, setBad] = useState(false);
  const id = `dtrain-${name}`;
  const number = property.type === "integer" || property.type === "number";
  // A field of text is checked when the person leaves it, not in the middle of a word.
  const own = number || left ? problemOf(property, bad ? "?" : value, trans) : "";
  const problem = own !== "" ? own : props.problem;
  const shared = {
    id,
    "aria-describedby": `${id}-help ${id}-problem`,
    "aria-invalid": problem !== "",
  };
  return (
    <div>
      <label htmlFor={id}>{property.title}</label>
      {property.enum !== undefined ? (
        <HTMLSelect
          {...shared}
          value={typeof value === "string" ? value : (property.default ?? "")}
          onChange={(event) => {
            set(event.target.value);
          }}
        >
          {property.default === undefined && <option value="" />}
          {property.enum.map((choice) => (
            <option key={choice}>{choice}</option>
          ))}
        </HTMLSelect>
      ) : property.type === "boolean" ? (
        <input
          {...shared}
          type="checkbox"
          checked={value === true}
          onChange={(event) => {
            set(event.target.checked);
          }}
        />
      ) : (
        <input
          {...shared}
          className="jp-mod-styled"
          type={number ? "number" : "text"}
          min={property.minimum}
          max={property.maximum}
          value={typeof value === "string" ? value : ""}
          placeholder={property.type === "object" ? SHAPE : ""}
          onChange={(event) => {
            setBad(event.target.validity.badInput);
            setLeft(false);
            set(event.target.value);
          }}
          onBlur={() => {
            setLeft(true);
          }}
        />
      )}
      <small id={`${id}-help`}>{property.description}</small>
      <small id={`${id}-problem`} className="dtrain-problem" role="alert">
        {problem}
      </small>
    </div>
  );
}

/** The notation for variables, which is not translated. */
const SHAPE = "NAME=value NAME=value";
