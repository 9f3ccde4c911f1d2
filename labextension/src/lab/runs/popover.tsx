/** A button with a small panel below it, which closes with Escape, a click elsewhere, or when the focus leaves it. */

import { type JSX, type ReactNode, useEffect, useLayoutEffect, useRef, useState } from "react";
import { h } from "../jsx";

/** Pixels between the panel and the edges of the tab. */
const EDGE = 8;

export function Popover(props: {
  /** On the button. */
  words: ReactNode;
  /** The name of the button and of the panel. */
  label: string;
  className?: string;
  /** `close` puts the focus back on the button. */
  children: (close: () => void) => ReactNode;
}): JSX.Element {
  const [open, setOpen] = useState(false);
  const place = useRef<HTMLSpanElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const panel = useRef<HTMLDivElement>(null);
  const close = (): void => {
    setOpen(false);
    button.current?.focus();
  };
  useLayoutEffect(() => {
    const box = panel.current;
    const tab = place.current?.closest(".dtrain-runs");
    if (!open || box === null || tab == null) return undefined;
    const put = (): void => {
      const room = tab.getBoundingClientRect();
      const inner = tab.clientWidth;
      box.style.maxWidth = `${inner - 2 * EDGE}px`;
      const { left, top } = place.current!.getBoundingClientRect();
      const most = room.left + inner - EDGE - box.getBoundingClientRect().width;
      box.style.left = `${Math.max(room.left + EDGE, Math.min(left, most)) - left}px`;
      // It scrolls in itself where the tab ends.
      box.style.maxHeight = `${Math.max(160, room.bottom - top - button.current!.offsetHeight - 2 * EDGE)}px`;
    };
    put();
    box.querySelector<HTMLElement>("input, select, button")?.focus();
    const observer = new ResizeObserver(put);
    observer.observe(tab);
    return () => {
      observer.disconnect();
    };
  }, [open]);
  useEffect(() => {
    if (!open) return undefined;
    const pressed = (event: PointerEvent): void => {
      if (!place.current!.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", pressed, true);
    return () => {
      document.removeEventListener("pointerdown", pressed, true);
    };
  }, [open]);
  return (
    <span
      ref={place}
      className={`dtrain-runs-popover ${props.className ?? ""}`}
      onKeyDown={(event) => {
        if (!open || event.key !== "Escape") return;
        event.stopPropagation();
        close();
      }}
      onBlur={(event) => {
        if (event.relatedTarget !== null && !place.current!.contains(event.relatedTarget)) setOpen(false);
      }}
    >
      <button
        ref={button}
        type="button"
        className="dtrain-runs-button"
        aria-haspopup="dialog"
        aria-expanded={open}
        aria-label={props.label}
        title={props.label}
        onClick={() => {
          setOpen(!open);
        }}
      >
        {props.words}
      </button>
      {open && (
        <div ref={panel} className="dtrain-runs-panel" role="dialog" aria-label={props.label}>
          {props.children(close)}
        </div>
      )}
    </span>
  );
}
