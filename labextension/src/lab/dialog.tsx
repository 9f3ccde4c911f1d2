/** The dialog that starts a world; its fields come from each launcher's description of its options. */

import { Dialog, ReactWidget } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import { HTMLSelect } from "@jupyterlab/ui-components";
import { type JSX, useState } from "react";
import { assignments } from "./assignments";
import { h } from "./jsx";
import type { Launcher, Property } from "./messages";

export interface Wanted {
  launcher: string;
  options: Record<string, unknown>;
}

/** Ask which world to start; returns null if the person cancels. */
export async function askForWorld(
  launchers: Launcher[],
  ranks: number | null,
  trans: TranslationBundle,
): Promise<Wanted | null> {
  const form = new WorldForm(launchers, ranks, trans);
  const dialog = new Dialog<Wanted>({
    title: trans.__("Start a world"),
    body: form,
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__("Start") })],
    focusNodeSelector: "input",
  });
  const result = await dialog.launch();
  return result.button.accept ? result.value : null;
}

export class WorldForm extends ReactWidget implements Dialog.IBodyWidget<Wanted> {
  private wanted: Wanted;

  constructor(
    private launchers: Launcher[],
    ranks: number | null,
    private trans: TranslationBundle,
  ) {
    super();
    this.addClass("dtrain-form");
    const first = launchers[0];
    this.wanted = { launcher: first?.name ?? "", options: { n: ranks ?? first?.default_ranks } };
  }

  getValue(): Wanted {
    return this.wanted;
  }

  protected override render(): JSX.Element {
    return (
      <Form
        launchers={this.launchers}
        first={this.wanted}
        trans={this.trans}
        changed={(wanted) => {
          this.wanted = wanted;
        }}
      />
    );
  }
}

function Form(props: {
  launchers: Launcher[];
  first: Wanted;
  trans: TranslationBundle;
  changed: (wanted: Wanted) => void;
}): JSX.Element {
  const { launchers, trans } = props;
  const [wanted, setWanted] = useState(props.first);
  const change = (next: Wanted): void => {
    setWanted(next);
    props.changed(next);
  };
  const launcher = launchers.find((one) => one.name === wanted.launcher);
  const set = (name: string, value: unknown): void => {
    change({ ...wanted, options: { ...wanted.options, [name]: value } });
  };
  const here =
    launcher === undefined
      ? ""
      : launcher.gpus > 0
        ? trans._n("%1 GPU available", "%1 GPUs available", launcher.gpus)
        : trans._n("No GPU; %1 CPU core available", "No GPU; %1 CPU cores available", launcher.cores);
  return (
    <div className="dtrain-fields">
      <div>
        <label htmlFor="dtrain-launcher">{trans.__("Run on")}</label>
        <HTMLSelect
          id="dtrain-launcher"
          aria-describedby="dtrain-launcher-help"
          value={wanted.launcher}
          onChange={(event) => {
            const chosen = launchers.find((one) => one.name === event.target.value);
            change({ launcher: event.target.value, options: { n: chosen?.default_ranks } });
          }}
        >
          {launchers.map((one) => (
            <option key={one.name} value={one.name}>
              {one.title}
            </option>
          ))}
        </HTMLSelect>
        <small id="dtrain-launcher-help">{here}</small>
      </div>
      {Object.entries(launcher?.schema.properties ?? {}).map(([name, property]) => (
        <div key={name}>
          <label htmlFor={`dtrain-${name}`}>{property.title}</label>
          <Field
            id={`dtrain-${name}`}
            property={property}
            value={wanted.options[name]}
            set={(value) => {
              set(name, value);
            }}
          />
          <small id={`dtrain-${name}-help`}>{property.description}</small>
        </div>
      ))}
    </div>
  );
}

function Field({
  id,
  property,
  value,
  set,
}: {
  id: string;
  property: Property;
  value: unknown;
  set: (value: unknown) => void;
}): JSX.Element {
  const [text, setText] = useState(typeof value === "number" || typeof value === "string" ? String(value) : "");
  if (property.enum !== undefined) {
    return (
      <HTMLSelect
        id={id}
        aria-describedby={`${id}-help`}
        value={(value as string | undefined) ?? property.default}
        onChange={(event) => {
          set(event.target.value);
        }}
      >
        {property.enum.map((choice) => (
          <option key={choice}>{choice}</option>
        ))}
      </HTMLSelect>
    );
  }
  if (property.type === "boolean") {
    return (
      <input
        id={id}
        aria-describedby={`${id}-help`}
        type="checkbox"
        checked={value === true}
        onChange={(event) => {
          set(event.target.checked);
        }}
      />
    );
  }
  const number = property.type === "integer";
  const map = property.type === "object";
  return (
    <input
      id={id}
      aria-describedby={`${id}-help`}
      className="jp-mod-styled"
      type={number ? "number" : "text"}
      min={property.minimum}
      value={text}
      placeholder={map ? SHAPE : ""}
      onChange={(event) => {
        setText(event.target.value);
        if (number) set(event.target.value === "" ? null : Number(event.target.value));
        else set(map ? assignments(event.target.value) : event.target.value);
      }}
    />
  );
}

/** The notation for variables, which is not translated. */
const SHAPE = "NAME=value NAME=value";
