/** Creates and updates DOM elements. Text is inserted as text, so that no output of a rank becomes markup. */

import { NOTICES } from "./generated";

export interface Props {
  class?: string;
  title?: string;
  type?: string;
  role?: string;
  tabIndex?: number;
  hidden?: boolean;
  [attribute: `aria-${string}` | `data-${string}`]: string;
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props) as [string, string | number | boolean][]) {
    if (name === "tabIndex") element.tabIndex = Number(value);
    else if (name === "hidden") element.hidden = value === true;
    else element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/** A small link to the page that explains the kinds of notices. */
export function explained(anchor: string): HTMLAnchorElement {
  const link = h("a", { class: "dtrain-explained" }, "What this means");
  link.href = addressOf(anchor);
  link.target = "_blank";
  link.rel = "noopener";
  return link;
}

export function addressOf(anchor: string): string {
  return `${NOTICES}#${anchor}`;
}

/** The anchor for a reason why steps are slow. */
export function anchorOfReason(reason: string): string {
  return `slow-steps-${reason.replaceAll(" ", "-")}`;
}

/** Set an element's text only if it changes, so that the browser need not lay out the page again. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element: Element, name: string, value: string | null): void {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

/** The space between a readout and the cursor, or the edge, in pixels. */
const GAP = 14;
const EDGE = 2;

/** Put a readout beside a cursor at `left`, on the side that has more room, and within a box that is `room` wide. */
export function placeBeside(readout: HTMLElement, left: number, room: number): void {
  const { style } = readout;
  style.left = "0";
  style.maxWidth = `${room - 2 * EDGE}px`;
  const width = readout.offsetWidth;
  const wanted = left > room / 2 ? left - GAP - width : left + GAP;
  style.left = `${Math.max(EDGE, Math.min(wanted, room - EDGE - width))}px`;
}

/** The end of a longer name stays in sight: there names of one family differ. */
const LONG_NAME = 24;
const END = 14;

/** A name in a place that may be too narrow for it, which is then cut in its middle. */
export function nameNode(name: string, className: string): HTMLElement {
  const parts = nameParts(name).map((part) => h("span", {}, part));
  return h("span", { class: className, title: name }, ...parts);
}

/** A name in two parts, of which the first may be cut; the second is empty for a short one. */
export function nameParts(name: string): [head: string, tail: string] {
  return name.length > LONG_NAME ? [name.slice(0, -END), name.slice(-END)] : [name, ""];
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG drawing of one path; `box` is its view box, and `shape` has the path's attributes. */
export function drawing(box: string, className: string, shape: Record<string, string>): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", box);
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", className);
  const path = document.createElementNS(SVG, "path");
  for (const [name, value] of Object.entries(shape)) path.setAttribute(name, value);
  svg.append(path);
  return svg;
}

/** An icon from one path in a 12 × 12 box. */
export function icon(path: string, filled: boolean): SVGSVGElement {
  return drawing("0 0 12 12", filled ? "dtrain-icon dtrain-icon-filled" : "dtrain-icon", { d: path });
}
