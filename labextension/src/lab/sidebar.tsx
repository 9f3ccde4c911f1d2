/** The "Distributed Training" panel in JupyterLab's sidebar. */

import { ReactWidget } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import { LabIcon, closeIcon } from "@jupyterlab/ui-components";
import type { Message } from "@lumino/messaging";
import { type JSX, Suspense, lazy, useEffect, useReducer, useState } from "react";
import type { Actions } from "./actions";
import { AttentionList } from "./attention";
import { Fragment, h } from "./jsx";
import { Losses } from "./losses";
import { Prompts } from "./prompts";
import { RankList } from "./ranks";
import { Section, Tool } from "./section";
import { WorldList } from "./worldList";

/** Parts whose scripts are loaded when the panel first shows them. */
const History = lazy(() => import("./history"));
const Variables = lazy(() => import("./variables"));

export const PANEL = "jupyter-dtrain-panel";

export const icon = new LabIcon({
  name: "jupyter-dtrain:ranks",
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" width="16"><g class="jp-icon3" fill="#616161">' +
    '<circle cx="8" cy="3" r="2"/><circle cx="3" cy="12.5" r="2"/><circle cx="8" cy="12.5" r="2"/>' +
    '<circle cx="13" cy="12.5" r="2"/><path d="M7.5 4.5h1v6.5h-1zM7.3 4.2l.9.5-4.4 7-.9-.5zM8.7 4.2l-.9.5 4.4 7 .9-.5z"/>' +
    "</g></svg>",
});

/** The panel is drawn at most once in this many milliseconds. */
const CALM = 250;

/**
 * Ask which world to start, and start it in `options.folder`, the current notebook's folder.
 *
 * `again`: a world that did not start, whose options are in the fields then.
 */
export async function createWorld(
  actions: Actions,
  trans: TranslationBundle,
  options: { folder: string; ranks: number | null; again: string },
): Promise<void> {
  const before = document.activeElement;
  await actions.attempt(async () => {
    const { startWorld } = await import("./dialog"); // loaded when it first opens
    await startWorld(actions, trans, options);
  });
  // The button that opened the dialog is gone where the first world has taken its place.
  if (before?.isConnected !== true) document.querySelector<HTMLElement>(`#${PANEL} .dtrain-new`)?.focus();
}

export class Sidebar extends ReactWidget {
  constructor(
    private actions: Actions,
    private trans: TranslationBundle,
    private create: (again?: string) => void,
    private hint: string,
  ) {
    super();
    this.id = PANEL;
    this.title.icon = icon;
    this.title.caption = trans.__("Distributed Training");
    this.addClass("dtrain-panel");
    this.node.setAttribute("role", "region");
    this.node.tabIndex = -1;
    this.node.setAttribute("aria-label", trans.__("Distributed Training"));
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.actions.worlds.want(this, "");
    this.update();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.actions.worlds.want(this, null);
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.isVisible) this.actions.worlds.want(this, "");
  }

  override dispose(): void {
    this.actions.worlds.want(this, null);
    super.dispose();
  }

  protected override render(): JSX.Element {
    const { actions, trans, create, hint } = this;
    return <Contents {...{ actions, trans, create, hint }} visible={() => this.isVisible} />;
  }
}

function Contents(props: {
  actions: Actions;
  trans: TranslationBundle;
  create: (again?: string) => void;
  hint: string;
  visible: () => boolean;
}): JSX.Element {
  const { actions, trans, create, visible } = props;
  const { worlds } = actions;
  const [, draw] = useReducer((drawn: number) => drawn + 1, 0);
  useEffect(() => {
    let pending = 0;
    let drawn = 0;
    const changed = (_: unknown, what: string): void => {
      // Draw once for messages that arrive together, and not at all while the panel is hidden.
      if (!visible()) return;
      if (what === "asked") draw();
      if (pending !== 0) return;
      pending = window.setTimeout(
        () => {
          pending = 0;
          drawn = performance.now();
          draw();
        },
        Math.max(0, drawn + CALM - performance.now()),
      );
    };
    worlds.changed.connect(changed);
    return () => {
      clearTimeout(pending);
      worlds.changed.disconnect(changed);
    };
  }, [worlds, visible]);
  const { selected } = worlds;
  const details = selected === null ? null : worlds.of(selected.id);
  const shared = { actions, trans };
  return (
    <>
      <h2 className="dtrain-title">{trans.__("Distributed Training")}</h2>
      {!worlds.connected && (
        <div className="dtrain-banner" role="status">
          <span>
            {worlds.everConnected ? trans.__("Connection lost; reconnecting…") : trans.__("Connecting to the server…")}
          </span>
          <button
            onClick={() => {
              worlds.reconnect();
            }}
          >
            {trans.__("Retry now")}
          </button>
        </div>
      )}
      <Prompts {...shared} />
      <AttentionList items={worlds.items} create={create} {...shared} />
      <WorldList worlds={worlds.worlds} selected={selected} create={create} {...shared} />
      {selected !== null && details !== null && (
        <RankList world={selected} named={worlds.worlds.length > 1} details={details} {...shared} />
      )}
      {selected !== null && selected.ready > 0 && (
        <Suspense fallback={null}>
          {/* A new process has other variables: what the old one held is forgotten. */}
          <Variables
            key={[selected.id, ...(details?.ranks.map((rank) => rank.pid) ?? [])].join()}
            world={selected}
            {...shared}
          />
        </Suspense>
      )}
      <Section title={trans.__("Losses")}>
        {selected !== null && details !== null && <Losses world={selected} details={details} {...shared} />}
        <Suspense fallback={null}>
          <History {...shared} />
        </Suspense>
      </Section>
      {props.hint !== "" && <Hint text={props.hint} trans={trans} />}
    </>
  );
}

const HINT_SEEN = "jupyter-dtrain:hint-seen";

/** A line of advice that is shown until it is dismissed once in this browser. */
function Hint({ text, trans }: { text: string; trans: TranslationBundle }): JSX.Element | null {
  const [seen, setSeen] = useState(() => localStorage.getItem(HINT_SEEN) !== null);
  if (seen) return null;
  return (
    <div className="dtrain-hint">
      <span>{text}</span>
      <Tool
        icon={closeIcon}
        label={trans.__("Do not show this again")}
        run={() => {
          localStorage.setItem(HINT_SEEN, "1");
          setSeen(true);
        }}
      />
    </div>
  );
}
