/**
 * The prompts of a run: what its ranks ask a person, and a field for each question that this page can answer.
 *
 * A person types while the ranks go on, so that a row stays as it is, with its text and the focus, as long as its ranks
 * ask. A debugger asks again after each command: its row stays meanwhile, and shows what was said there.
 */

import { h, setAttribute, setText } from "./dom";
import { rankList } from "./format";
import type { PromptPart } from "./generated";

/** How a page answers prompts. */
export interface Answerer {
  /** Why this page cannot answer, and who can, as a sentence; empty if it can. */
  readonly instead: string;
  /** `text`: a line; null for the end of the input. A rejected promise's message says what is wrong. */
  answer(run: number, prompts: Record<number, number>, text: string | null): Promise<void>;
}

/** Milliseconds in which what was answered mostly asks again: for so long a debugger's row stays, and so does the focus. */
const STAYS = 2000;

/** The characters of a debugger's words that a row keeps. */
const KEPT = 50_000;

/** JupyterLab's boxes that have had the focus: a person who goes back to one of them means it. */
const focusedBoxes = new WeakSet<Element>();

function named(ranks: readonly number[]): string {
  return `${ranks.length === 1 ? "Rank" : "Ranks"} ${rankList([...ranks])}`;
}

/** One question, of one rank or of several that ask the same. */
class Row {
  readonly node = h("form", { class: "dtrain-prompt", "data-lm-suppress-shortcuts": "true" });
  private who = h("span", { class: "dtrain-prompt-who" });
  private said = h("pre", { class: "dtrain-prompt-said", tabIndex: 0, "aria-label": "What the debugger has said" });
  private text = h("span", { class: "dtrain-prompt-text" });
  private field = h("input", { class: "dtrain-prompt-field" });
  private button = h("button", { class: "dtrain-button", type: "submit" });
  private line = h("label", { class: "dtrain-prompt-line" }, this.text, this.field);
  private problem = h("span", { class: "dtrain-prompt-problem", role: "alert" });
  private numbers = "";
  /** When it is over unless its ranks ask on: milliseconds of the page; 0 while they ask. */
  private until = 0;
  private sending = false;
  /** When it was answered, in milliseconds of the page. */
  private sent = -Infinity;

  constructor(
    private part: PromptPart,
    private run: number,
    private answerer: () => Answerer | null,
  ) {
    const { field, button } = this;
    const debugs = part.kind === "debugger";
    field.type = part.kind === "password" ? "password" : "text";
    field.autocomplete = "off";
    field.spellcheck = false;
    field.setAttribute("autocapitalize", "off");
    // What is typed here is no command of the page.
    this.node.addEventListener("keydown", (event) => {
      event.stopPropagation();
    });
    this.node.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.send();
    });
    // JupyterLab gives the focus to each new box of its own; a person who answers here stays here.
    field.addEventListener("focusout", ({ relatedTarget }) => {
      if (!(relatedTarget instanceof Element) || !relatedTarget.matches(".jp-Stdin-input")) return;
      const fresh = !focusedBoxes.has(relatedTarget);
      focusedBoxes.add(relatedTarget);
      if (fresh && performance.now() < this.sent + STAYS) {
        setTimeout(() => {
          this.focus();
        });
      }
    });
    button.textContent = debugs ? "Send" : "Answer";
    this.node.append(
      this.who,
      ...(debugs ? [this.said] : []),
      h("div", { class: "dtrain-prompt-row" }, this.line, button),
      this.problem,
    );
  }

  /** Whether it shows this question, or the one before of the same debugger. */
  isOf({ kind, ranks, numbers }: PromptPart): boolean {
    const { part } = this;
    if (part.kind !== kind) return false;
    if (kind === "debugger") return part.ranks[0] === ranks[0];
    return ranks.some((rank, at) => part.numbers[part.ranks.indexOf(rank)] === numbers[at]);
  }

  get focused(): boolean {
    return this.node.contains(document.activeElement);
  }

  focus(): void {
    this.field.focus({ preventScroll: true });
  }

  update(part: PromptPart): void {
    const numbers = part.numbers.join();
    if (numbers !== this.numbers && part.kind === "debugger") this.say(part.said);
    this.numbers = numbers;
    this.until = 0;
    this.part = part;
    setText(this.who, `${named(part.ranks)}${part.place === "" ? "" : ` · ${part.place}`}`);
    setText(this.text, part.text);
    const asked = part.text.trim();
    const label = `${named(part.ranks)}${asked === "" ? "" : `: ${asked}`}`;
    setAttribute(this.field, "aria-label", label);
    setAttribute(this.button, "aria-label", `${this.button.textContent}: ${label}`);
  }

  /** Show whether this page can answer. `alone`: the sentence on all prompts says who asks. */
  offer(answers: boolean, alone: boolean): void {
    this.who.hidden = alone;
    this.field.hidden = this.button.hidden = !answers;
    this.line.hidden = !answers && this.part.text === "";
  }

  /** Its ranks do not ask now; returns whether the row is over. */
  rest(now: number): boolean {
    if (this.until === 0) this.until = now + (this.part.kind === "debugger" ? STAYS : 0);
    return now >= this.until;
  }

  private say(words: string): void {
    if (words === "") return;
    const whole = `${this.said.textContent}${words}`;
    this.said.textContent = whole.length > KEPT ? whole.slice(-KEPT) : whole;
    this.said.scrollTop = this.said.scrollHeight;
  }

  private async send(): Promise<void> {
    const answerer = this.answerer();
    if (answerer === null || this.sending || this.until !== 0) return;
    const { ranks, numbers, kind, text } = this.part;
    const typed = this.field.value;
    this.sending = true;
    this.sent = performance.now();
    setText(this.problem, "");
    try {
      await answerer.answer(this.run, Object.fromEntries(ranks.map((rank, at) => [rank, numbers[at]!])), typed);
      if (kind === "debugger") this.say(`${text}${typed}\n`);
      this.field.value = "";
    } catch (error) {
      setText(this.problem, (error as Error).message);
    } finally {
      this.sending = false;
    }
  }
}

/** All prompts of one run, and a sentence on them. Nothing is shown while no rank asks. */
export class PromptRows {
  private sentence = h("div", { class: "dtrain-asked", role: "status", "aria-live": "polite" });
  private instead = h("div", { class: "dtrain-prompt-instead", hidden: true });
  private list = h("div", {});
  readonly node = h("div", { class: "dtrain-prompts" }, this.sentence, this.list, this.instead);
  private rows: Row[] = [];
  private timer = 0;
  private last: Parameters<PromptRows["update"]> | null = null;

  constructor(private answerer: () => Answerer | null) {}

  /** `asked`: which ranks are at a prompt, as a sentence. */
  update(run: number, asked: string, prompts: readonly PromptPart[]): void {
    this.last = [run, asked, prompts];
    clearTimeout(this.timer);
    const answerer = this.answerer();
    const answers = answerer !== null && answerer.instead === "";
    const now = performance.now();
    const asking = new Set<Row>();
    for (const part of prompts) {
      let row = this.rows.find((one) => one.isOf(part));
      if (row === undefined) {
        row = new Row(part, run, this.answerer);
        this.rows.push(row);
        this.list.append(row.node);
      }
      asking.add(row);
      row.update(part);
    }
    const over = this.rows.filter((row) => !asking.has(row) && row.rest(now));
    const lost = over.some((row) => row.focused);
    for (const row of over) row.node.remove();
    this.rows = this.rows.filter((row) => !over.includes(row));
    for (const row of this.rows) row.offer(answers, this.rows.length === 1);
    // A person who answers one question after the other goes on with the next.
    if (lost && answers) this.rows[0]?.focus();
    setText(this.sentence, asked);
    setText(this.instead, answerer?.instead ?? "");
    this.instead.hidden = this.rows.length === 0 || answerer === null || answers;
    this.node.classList.toggle("dtrain-prompts-open", this.rows.length > 0 || asked !== "");
    if (this.rows.length > asking.size) {
      this.timer = window.setTimeout(() => {
        if (this.last !== null) this.update(...this.last);
      }, STAYS);
    }
  }

  destroy(): void {
    clearTimeout(this.timer);
    this.last = null;
  }
}
