/**
 * A hand on the running loop of a run: pause it, let it make one step, set its learning rate, end it, and run code
 * between two of its steps, on all ranks.
 *
 * One act at a time: while one is under way the buttons rest, and keep the focus. What became of the newest act of all
 * clients is a sentence below them, and so is the reason for which an act was refused; nothing has changed then.
 */

import { h, setAttribute, setText } from "./dom";
import { rankList } from "./format";
import type { RecordedAct } from "./generated";
import type { RunModel } from "./model";
import type { RankState } from "./runDocument";

/** What a page asks of a loop. */
export interface LoopAct {
  kind: "between" | "set" | "undo" | "pause" | "resume" | "step" | "stop-after";
  code?: string;
  settings?: { path: string; value: string }[];
  count?: number;
}

/** What became of it. */
export interface Steered {
  words: string;
  /** The step after which it was done. */
  step: number;
  /** What each rank has printed. */
  ranks: Record<string, string>;
}

/** How a page steers loops. */
export interface Steerer {
  /** Why this page cannot steer, and who can, as a sentence; empty if it can. */
  readonly instead: string;
  /** A rejected promise's message says why it was not done. */
  steer(run: number, act: LoopAct): Promise<Steered>;
}

/** The path of the learning rate of the optimizer that steps first. */
const RATE = "optimizer.lr";

/** Seconds after which a cell can be steered of which no steps are seen here: a user's own may be counted by ranks only. */
const LONG = 3;

const GOES: readonly RankState[] = ["running", "waiting", "asking", "held"];

/** The newest learning rate, as it can be typed; empty where a run logs none. */
export function rateOf(model: RunModel): string {
  const names = [...model.metrics.keys()].filter((name) => name === "lr" || name.startsWith("lr/")).sort();
  const value = names.length === 0 ? null : model.metrics.get(names[0]!)!.value(false);
  return value === null ? "" : String(Number(value.toPrecision(6)));
}

/** Whether a `set` is left that can be put back, as far as the newest acts tell. */
export function canUndo(acts: readonly RecordedAct[]): boolean {
  let sets = 0;
  for (const { words, failed } of acts) {
    if (words.startsWith("set ") && failed !== true) sets += 1;
    else if (words === "undo") sets = Math.max(0, sets - 1);
  }
  return sets > 0;
}

/** The output of ranks, equal texts once, with the ranks that have printed them; ranks without any are left out. */
export function outputs(ranks: Readonly<Record<string, string>>): [ranks: string, text: string][] {
  const found = new Map<string, number[]>();
  for (const [rank, text] of Object.entries(ranks)) {
    if (text.trim() !== "") found.set(text, [...(found.get(text) ?? []), Number(rank)]);
  }
  return [...found].map(([text, said]) => [`${said.length === 1 ? "rank" : "ranks"} ${rankList(said)}`, text]);
}

/** What became of an act, and who has asked for it. */
function told(act: RecordedAct): [said: string, by: string] {
  const code = act.words.startsWith("between ") ? `${act.words} · ` : "";
  return [act.said === "" ? `${act.words} …` : act.said, `${code}by ${act.by}`];
}

/** Whether there are steps in sight, or a cell that has taken long enough to have a loop. */
function hasLoop(model: RunModel): boolean {
  if (!model.ranks.some(({ state }) => GOES.includes(state))) return false;
  const { step, stepTime, bars, acts, pausedAt } = model;
  return (
    step !== null || stepTime !== null || bars.length + acts.length > 0 || pausedAt !== null || model.clock >= LONG
  );
}

export class Steering {
  private pauseButton = this.button("Pause", "", () => this.pause());
  private stepButton = this.button("Step", "Make one step on all ranks, and pause again", () =>
    this.act({ kind: "step", count: 1 }, "One step…"),
  );
  private rateField = h("input", { class: "dtrain-steering-rate", type: "text" });
  private rateForm = h("form", { class: "dtrain-steering-set" });
  private undoButton = this.button("Undo", "Put back what the last set has replaced, on each rank its own value", () =>
    this.act({ kind: "undo" }, "Putting it back after a step…"),
  );
  private codeButton = this.button("Run between steps…", "Run code on all ranks between two steps of the loop", () => {
    if (this.form.hidden) this.open();
    else this.close();
  });
  private endButton = this.button("End loop", "End the loop after its next step, as if it had finished", () =>
    this.act({ kind: "stop-after", count: 0 }, "Ending the loop after its next step…"),
  );
  private row = h("div", { class: "dtrain-steering-row", role: "group", "aria-label": "Steer the loop" });
  private code = h("textarea", { class: "dtrain-steering-code" });
  private form = h("form", { class: "dtrain-steering-form", hidden: true });
  private output = h("div", { class: "dtrain-steering-output", role: "log", "aria-label": "Output of the ranks" });
  private said = h("span", {});
  private by = h("span", { class: "dtrain-steering-by" });
  private status = h(
    "div",
    { class: "dtrain-steering-said", role: "status", "aria-live": "polite" },
    this.said,
    this.by,
  );
  private problem = h("div", { class: "dtrain-steering-problem", role: "alert" });
  private instead = h("div", { class: "dtrain-steering-instead" });
  readonly node = h("div", { class: "dtrain-steering", "data-lm-suppress-shortcuts": "true", hidden: true });
  private model: RunModel | null = null;
  private busy = false;
  /** What this page has done last, until an act comes after it; and the newest act by then. */
  private own = "";
  private since = 0;

  /** `close`: set where only code can be run, in a field that is open from the start; called when it is closed. */
  constructor(
    private steerer: () => Steerer | null,
    private closed: (() => void) | null = null,
  ) {
    const { code, form, rateField, rateForm, row } = this;
    rateField.inputMode = "decimal";
    rateField.autocomplete = "off";
    rateField.spellcheck = false;
    rateField.size = 8;
    const set = h("button", { class: "dtrain-button", type: "submit", title: "Set it on all ranks between two steps" });
    set.textContent = "Set";
    set.setAttribute("aria-label", "Set the learning rate");
    rateField.setAttribute("aria-label", "New learning rate of the optimizer that steps first");
    rateForm.append(h("span", { "aria-hidden": "true" }, "lr"), rateField, set);
    rateForm.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.setRate();
    });
    row.append(this.pauseButton, this.stepButton, rateForm, this.undoButton, this.codeButton, this.endButton);
    row.hidden = closed !== null;
    code.rows = 4;
    code.spellcheck = false;
    code.placeholder = "print(loss.item())";
    code.setAttribute("autocapitalize", "off");
    code.setAttribute("aria-label", "Code to run on all ranks between two steps");
    code.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        void this.run();
      } else if (event.key === "Escape") {
        event.preventDefault();
        this.close();
      }
    });
    const run = h("button", { class: "dtrain-button", type: "submit", title: "Ctrl+Enter or ⌘ Enter" }, "Run");
    const close = this.button("Close", "Escape", () => {
      this.close();
    });
    form.append(
      code,
      h(
        "div",
        { class: "dtrain-steering-row" },
        run,
        close,
        h("span", { class: "dtrain-steering-by" }, "The code has the names of the loop's function."),
      ),
      this.output,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.run();
    });
    if (closed !== null) form.hidden = false;
    // What is typed here is no command of the page.
    this.node.addEventListener("keydown", (event) => {
      event.stopPropagation();
    });
    this.node.append(row, form, this.problem, this.status, this.instead);
  }

  /** `live`: whether the run goes on. */
  update(model: RunModel, live: boolean): void {
    this.model = model;
    const steerer = this.steerer();
    this.node.hidden = steerer === null || !live || (this.closed === null && !hasLoop(model));
    if (this.node.hidden) return;
    const can = steerer?.instead === "";
    const paused = model.pausedAt !== null;
    setText(this.instead, steerer?.instead ?? "");
    this.row.hidden = !can || this.closed !== null;
    if (!can && this.closed === null) this.form.hidden = true;
    setText(this.pauseButton, paused ? "Resume" : "Pause");
    setAttribute(
      this.pauseButton,
      "title",
      paused ? "Let the loop go on" : "Hold all ranks after the same step until you let them go on",
    );
    // The focus must not be lost with a button that goes.
    const lost = !paused && document.activeElement === this.stepButton && !this.busy;
    this.stepButton.hidden = !paused && !(this.busy && !this.stepButton.hidden);
    if (lost) this.pauseButton.focus({ preventScroll: true });
    const newest = rateOf(model);
    this.rateForm.hidden = newest === "";
    if (this.rateField.placeholder !== newest) this.rateField.placeholder = newest;
    this.undoButton.hidden = !canUndo(model.acts);
    setAttribute(this.codeButton, "aria-expanded", String(!this.form.hidden));
    this.showStatus();
  }

  /** Give the focus to the field for code. */
  focus(): void {
    this.code.focus({ preventScroll: true });
  }

  private showStatus(): void {
    const { model } = this;
    const newest = model?.acts.at(-1);
    if (newest !== undefined && newest.number > this.since && !this.busy) this.own = "";
    let [said, by] = [this.own, ""];
    if (said === "" && newest !== undefined) [said, by] = told(newest);
    const paused = model?.pausedAt ?? null;
    if (this.own === "" && paused !== null && (newest === undefined || /^(pause|step)\b/.test(newest.words))) {
      said = `Paused after step ${paused}.`;
    }
    setText(this.said, said);
    setText(this.by, by);
    this.said.classList.toggle("dtrain-steering-failed", newest?.failed === true && said.startsWith(newest.said));
  }

  private button(words: string, title: string, press: () => unknown): HTMLButtonElement {
    const found = h("button", { class: "dtrain-button", type: "button", title }, words);
    found.addEventListener("click", () => {
      press();
    });
    return found;
  }

  private pause(): Promise<Steered | null> {
    if (this.model?.pausedAt != null) return this.act({ kind: "resume" }, "The loop goes on…");
    return this.act({ kind: "pause" }, "All ranks come to the same step…");
  }

  private async setRate(): Promise<void> {
    const value = this.rateField.value.trim();
    if (value === "" || !Number.isFinite(Number(value))) {
      setText(this.problem, "Type the new learning rate as a number, such as 1e-4.");
      this.rateField.focus();
      return;
    }
    const act: LoopAct = { kind: "set", settings: [{ path: RATE, value }] };
    if ((await this.act(act, "Setting it between two steps…")) !== null) this.rateField.value = "";
  }

  private async run(): Promise<void> {
    const code = this.code.value;
    if (this.busy || code.trim() === "") return;
    this.output.replaceChildren();
    const found = await this.act({ kind: "between", code }, "It runs between two steps…");
    if (found === null) return;
    const parts = outputs(found.ranks);
    this.output.replaceChildren(
      ...parts.flatMap(([ranks, text]) => [
        h("div", { class: "dtrain-steering-by" }, `${ranks}:`),
        h("pre", { tabIndex: 0 }, text.replace(/\n$/, "")),
      ]),
    );
  }

  private open(): void {
    this.form.hidden = false;
    this.codeButton.setAttribute("aria-expanded", "true");
    this.code.focus();
  }

  private close(): void {
    if (this.closed !== null) {
      this.closed();
      return;
    }
    this.form.hidden = true;
    this.codeButton.setAttribute("aria-expanded", "false");
    this.codeButton.focus();
  }

  /** Have an act done, and say what becomes of it; null where it was not done. `doing`: what is said meanwhile. */
  private async act(act: LoopAct, doing: string): Promise<Steered | null> {
    const steerer = this.steerer();
    const { model } = this;
    if (this.busy || steerer === null || model === null) return null;
    this.rest(true);
    setText(this.problem, "");
    this.own = doing;
    this.showStatus();
    let found: Steered | null = null;
    try {
      found = await steerer.steer(model.run, act);
      // Its own act may be among those that the page knows by now, or come later.
      const pauses = act.kind === "pause" || act.kind === "step";
      this.own = pauses ? `Paused after step ${found.step}.` : found.words;
      this.since = model.acts.at(-1)?.number ?? 0;
      if (model.acts.at(-1)?.said === this.own) this.own = "";
    } catch (error) {
      this.own = "";
      setText(this.problem, (error as Error).message);
    } finally {
      this.rest(false);
    }
    this.update(model, !this.node.hidden);
    return found;
  }

  private rest(rests: boolean): void {
    this.busy = rests;
    // A button that is disabled loses the focus: these are only said to be.
    for (const button of this.node.querySelectorAll("button")) {
      if (button.title !== "Escape") setAttribute(button, "aria-disabled", rests ? "true" : null);
    }
    this.node.setAttribute("aria-busy", String(rests));
  }
}
