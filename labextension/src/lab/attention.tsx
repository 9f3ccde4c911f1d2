/** The Attention section of the sidebar: dead or hung ranks, bad values, runs that ended. */

import { closeIcon } from "@jupyterlab/ui-components";
import type { JSX } from "react";
import { h } from "./jsx";
import type { Item } from "./messages";
import { Section, Tool, type SectionProps } from "./section";

export function AttentionList({ items, actions, trans }: SectionProps & { items: Item[] }): JSX.Element | null {
  if (items.length === 0) return null;
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
        {items.map((item) => (
          <li key={item.id} data-level={item.level}>
            <div className="dtrain-item-head">
              <button
                type="button"
                className="dtrain-link"
                title={trans.__("Show world %1", item.name)}
                onClick={() => {
                  actions.worlds.select(item.world);
                }}
              >
                {item.words}
              </button>
              <Tool
                icon={closeIcon}
                label={trans.__("Dismiss")}
                run={() => {
                  actions.worlds.dismiss(item.id);
                }}
              />
            </div>
            <small>
              {item.name} · {new Date(1000 * item.time).toLocaleTimeString()}
            </small>
            {item.detail !== "" && <pre>{item.detail}</pre>}
          </li>
        ))}
      </ul>
    </Section>
  );
}
