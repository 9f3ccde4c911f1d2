/** The parts that all sections of the sidebar share: a section that folds, a tool button, and the current time. */

import type { TranslationBundle } from "@jupyterlab/translation";
import type { LabIcon } from "@jupyterlab/ui-components";
import { type JSX, type ReactNode, useEffect, useState } from "react";
import type { Actions } from "./actions";
import { h } from "./jsx";

export interface SectionProps {
  actions: Actions;
  trans: TranslationBundle;
}

export function Tool(props: {
  icon: LabIcon;
  label: string;
  run: () => void;
  disabled?: boolean;
  className?: string;
}): JSX.Element {
  return (
    <button
      className={`dtrain-tool ${props.className ?? ""}`}
      title={props.label}
      aria-label={props.label}
      disabled={props.disabled ?? false}
      onClick={(event) => {
        event.stopPropagation();
        props.run();
      }}
    >
      <props.icon.react tag="span" width="14px" height="14px" />
    </button>
  );
}

export function Section(props: { title: string; tools?: ReactNode; children: ReactNode; note?: string }): JSX.Element {
  const [open, setOpen] = useState(true);
  return (
    <section className="dtrain-section" aria-label={props.title}>
      <h3>
        <button
          className="dtrain-fold"
          aria-expanded={open}
          onClick={() => {
            setOpen(!open);
          }}
        >
          <span aria-hidden="true">{open ? "▾" : "▸"}</span> {props.title}
          {props.note !== undefined && <span className="dtrain-count">{props.note}</span>}
        </button>
        {props.tools}
      </h3>
      {open && props.children}
    </section>
  );
}

/** The time in milliseconds since the epoch, updated every `period` milliseconds while the page is visible. */
export function useNow(period: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, period);
    return () => {
      clearInterval(timer);
    };
  }, [period]);
  return now;
}
