/** The Attention section of the sidebar: what the person has not done and must know, each with its next step. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { closeIcon } from "@jupyterlab/ui-components";
import { type JSX, useState } from "react";
import { rankList } from "../format";
import { stepsOf, type Step } from "./items";
import { h } from "./jsx";
import type { Item } from "./messages";
import { Section, Tool, type SectionProps } from "./section";

/** The items that are shown at first, so that the worlds below stay in sight. */
const FEW = 3;

export function AttentionList(
  props: SectionProps & { items: Item[]; create: (again?: string) => void },
): JSX.Element | null {
  const { items, actions, trans } = props;
  const [all, setAll] = useState(false);
  if (items.length === 0) return null;
  const shown = all ? items : items.slice(0, FEW);
  return (
    <Section
      title={trans.__("Attention")}
      note={String(items.length)}
      tools={
        <Tool
          icon={closeIcon}
          label={trans.__("Dismiss all")}
          run={() => {
            actions.worlds.dismiss(null);
          }}
        />
      }
    >
      <ul className="dtrain-items" role="log" aria-label={trans.__("Items that need attention")}>
        {shown.map((item) => (
          <ItemRow key={item.id} item={item} create={props.create} actions={actions} trans={trans} />
        ))}
      </ul>
      {items.length > FEW && (
        <button
          className="dtrain-link dtrain-more"
          aria-expanded={all}
          onClick={() => {
            setAll(!all);
          }}
        >
          {all ? trans.__("Show fewer") : trans.__("Show %1 more", items.length - FEW)}
        </button>
      )}
    </Section>
  );
}

function ItemRow(props: SectionProps & { item: Item; create: (again?: string) => void }): JSX.Element {
  const { item, create, actions, trans } = props;
  const [stacks, setStacks] = useState("");
  const world = actions.worlds.find(item.world);
  const about = [
    item.level === "info" ? "" : item.level === "error" ? trans.__("error") : trans.__("warning"),
    item.count > 1 && item.ranks.length > 1 ? trans.__("ranks %1", rankList(item.ranks)) : "",
    item.name,
    new Date(1000 * item.time).toLocaleTimeString(),
  ];
  const does: Record<Step, () => unknown> = {
    heal: () => world !== undefined && actions.heal(world),
    restart: () => world !== undefined && actions.restart(world),
    stacks: async () => {
      setStacks(trans.__("Asking the ranks…"));
      setStacks(await actions.worlds.stacks(item.world).catch((error: unknown) => (error as Error).message));
    },
    cell: () => actions.openCell(item.cell),
    run: () => actions.openRun(item.name, item.run!),
    start: () => {
      create(item.world);
    },
  };
  return (
    <li data-level={item.level} data-kind={item.kind}>
      <div className="dtrain-item-head">
        <button
          className="dtrain-link"
          title={trans.__("Show world %1", item.name)}
          onClick={() => {
            actions.worlds.select(item.world);
          }}
        >
          {item.words}
        </button>
        {item.count > 1 && (
          <span className="dtrain-count" title={trans.__("%1 times", item.count)}>
            ×{item.count}
          </span>
        )}
        <Tool
          icon={closeIcon}
          label={trans.__("Dismiss")}
          run={() => {
            actions.worlds.dismiss(item.id);
          }}
        />
      </div>
      <small>{about.filter((one) => one !== "").join(" · ")}</small>
      {item.detail !== "" &&
        (["start", "slow"].includes(item.kind) ? <p>{item.detail}</p> : <pre tabIndex={0}>{item.detail}</pre>)}
      <div className="dtrain-tools-row">
        {stepsOf(item, actions).map((step) => (
          <button key={step} className="dtrain-step" onClick={() => void does[step]()}>
            {stepLabel(step, item, trans)}
          </button>
        ))}
      </div>
      {stacks !== "" && <pre tabIndex={0}>{stacks}</pre>}
    </li>
  );
}

function stepLabel(step: Step, item: Item, trans: TranslationBundle): string {
  switch (step) {
    case "heal":
      return trans.__("Replace dead ranks…");
    case "restart":
      return trans.__("Restart the world…");
    case "stacks":
      return trans.__("Show stacks");
    case "cell":
      return trans.__("Open the cell");
    case "run":
      return trans.__("Show the run");
    case "start":
      return item.kind === "start" ? trans.__("Try again…") : trans.__("Start a world…");
  }
}
