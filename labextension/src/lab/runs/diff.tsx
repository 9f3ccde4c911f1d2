/** A difference as `diff -u` and git write it, with its lines coloured. A long one is shown in part at first. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { type JSX, useState } from "react";
import { Fragment, h } from "../jsx";

/** Lines that are shown before a person asks for more. */
const FIRST = 400;

export type DiffKind = "file" | "place" | "added" | "removed" | "same";

/** The kind of each line. */
export function diffLines(text: string): [kind: DiffKind, line: string][] {
  const lines = text.replace(/\n$/, "").split("\n");
  let inside = false;
  return lines.map((line, index) => {
    if (line.startsWith("@@")) {
      inside = true;
      return ["place", line];
    }
    const next = lines[index + 1] ?? "";
    // Of a removed line `-- x` the beginning looks like a file's, but no `+++` follows it.
    const file = /^(diff|index|new file|deleted file|old mode|new mode|similarity|rename|Binary) ?/.test(line);
    if ((file && !inside) || line.startsWith("diff --git ") || (line.startsWith("--- ") && next.startsWith("+++ "))) {
      inside = false;
      return ["file", line];
    }
    if (!inside) return ["file", line];
    if (line.startsWith("+")) return ["added", line];
    return line.startsWith("-") ? ["removed", line] : ["same", line];
  });
}

/** How many lines were added and removed. */
export function diffCounts(text: string): [added: number, removed: number] {
  const kinds = diffLines(text).map(([kind]) => kind);
  return [kinds.filter((kind) => kind === "added").length, kinds.filter((kind) => kind === "removed").length];
}

export function Diff({ text, label, trans }: { text: string; label: string; trans: TranslationBundle }): JSX.Element {
  const [all, setAll] = useState(false);
  const lines = diffLines(text);
  const shown = all ? lines : lines.slice(0, FIRST);
  return (
    <>
      <pre className="dtrain-page-diff" tabIndex={0} aria-label={label}>
        {shown.map(([kind, line], index) => (
          <span key={index} data-kind={kind}>
            {line}
            {"\n"}
          </span>
        ))}
      </pre>
      {lines.length > shown.length && (
        <button
          type="button"
          className="dtrain-page-button"
          onClick={() => {
            setAll(true);
          }}
        >
          {trans.__("Show %1 more lines", lines.length - shown.length)}
        </button>
      )}
    </>
  );
}
