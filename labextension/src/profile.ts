/** A profile of some steps, in the drawer of a run's panel: its tables, what is missing, and where its trace is. */

import "../style/profile.css";
import { h } from "./dom";
import type { PanelProfile } from "./generated";

const PERFETTO = "https://ui.perfetto.dev";

/** A number with its unit, or nothing: a column of these is aligned to the right. */
const NUMBER = /^(?:[-+−]?[\d.,]+(?: ?(?:µs|ms|s|%|bytes|[kMGT]B)(?:\/s)?)?)?$/;

/** `address`: where the trace can be downloaded; empty if it cannot. */
export function profileNode(profile: PanelProfile, address: string): HTMLElement {
  const tables = profile.tables.map(({ caption, columns, rows }) => {
    const sides = columns.map((_, index) => (rows.every((row) => NUMBER.test(row[index] ?? "")) ? "number" : "words"));
    const cell = (tag: "td" | "th", text: string, index: number): HTMLElement =>
      h(tag, { "data-column": sides[index] ?? "words" }, text);
    const head = columns.map((text, index) => {
      const found = cell("th", text, index);
      found.setAttribute("scope", "col");
      return found;
    });
    const body = rows.map((row) => h("tr", {}, ...row.map((text, index) => cell("td", text, index))));
    return h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body));
  });
  const remarks = profile.remarks.map((line) => h("p", {}, line));
  const place = { class: "dtrain-profile", role: "region", tabIndex: 0, "aria-label": "Profile" };
  return h("div", place, ...tables, ...remarks, h("p", {}, ...whereTo(profile.path, address)));
}

/** Where the trace is, and how it is opened. */
function whereTo(path: string, address: string): (Node | string)[] {
  const perfetto = h("a", {}, "ui.perfetto.dev");
  perfetto.href = PERFETTO;
  perfetto.target = "_blank";
  perfetto.rel = "noopener";
  const how = ["Open it on ", perfetto, " with ‘Open trace file’; it does not leave the browser."];
  if (address === "") return [`The trace of all steps is in ${path}. `, ...how];
  const name = path.split("/").pop() ?? path;
  const file = h("a", { title: path }, name);
  file.href = address;
  file.download = name;
  return ["Download the trace: ", file, ". ", ...how];
}
