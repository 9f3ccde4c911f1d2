/** Creates and updates DOM elements. Text is inserted as text, so that no output of a rank becomes markup. */

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

/** Set an element's text only if it changes, so that the browser need not lay out the page again. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element: Element, name: string, value: string | null): void {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG icon from one path in a 12 × 12 box. */
export function icon(path: string, filled: boolean): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", filled ? "dtrain-icon dtrain-icon-filled" : "dtrain-icon");
  const shape = document.createElementNS(SVG, "path");
  shape.setAttribute("d", path);
  svg.append(shape);
  return svg;
}
