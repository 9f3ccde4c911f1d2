/**
 * A cell's view of what its ranks printed: a bar that selects a rank, or what differs, and searches; long output folded
 * to its beginning and its newest lines, which stay in sight; figures and tables of ranks side by side, each below its ranks.
 *
 * It reads the cell's outputs and leaves them as they are, so a saved notebook has the same view, and programs that know
 * nothing of it show the output as it was printed. While nothing is selected or folded, JupyterLab draws the text.
 */

import "../../../style/output.css";

import type { TranslationBundle } from "@jupyterlab/translation";
import { h, setText } from "../../dom";
import { count } from "../../format";
import { linesOf, ranksIn, select, type Line, type Look } from "./lines";

const STDOUT = "application/vnd.jupyter.stdout";
const STDERR = "application/vnd.jupyter.stderr";
const PLAIN = "text/plain";

/** Lines that are shown without folding, and those of the beginning that a fold leaves; the others are the newest. */
export const UNFOLDED = 200;
const HEAD = 20;

/** Pixels from the end of the text within which a person is still reading its newest lines. */
const NEAR = 8;

/** Fewer lines need no bar. */
const FEW = 10;

/** Lines that are drawn as one text; the browser draws those that are out of sight when they come into it. */
const BLOCK = 500;

/** Milliseconds between two drawings. */
const CALM = 250;

interface Output {
  readonly type: string;
  readonly data: Record<string, unknown>;
  readonly metadata: Record<string, unknown>;
  /** Text that comes later is added to a stream, and the outputs send no signal for it. */
  readonly streamText?: { changed: { connect(slot: () => void): boolean } };
}

/** The parts of JupyterLab's code cell that are used here; its own type would pull its package into the build. */
export interface OutputCell {
  readonly isDisposed: boolean;
  readonly disposed: { connect(slot: () => void): boolean };
  readonly model: {
    readonly outputs: {
      readonly length: number;
      get(index: number): Output;
      changed: { connect(slot: () => void): boolean };
      stateChanged: { connect(slot: () => void): boolean };
    };
  };
  readonly outputArea: {
    readonly node: HTMLElement;
    readonly widgets: readonly { readonly node: HTMLElement }[];
    readonly rendermime: {
      createRenderer(kind: string): { node: HTMLElement; renderModel(model: unknown): Promise<void>; dispose(): void };
      createModel(options: { data: Record<string, unknown>; trusted: boolean }): unknown;
    };
  };
}

/** The ranks of an output, if it has any; whether it is only the caption of the next one, or one printed line. */
interface Origin {
  rank?: number;
  ranks?: number[];
  caption?: boolean;
  line?: boolean;
}

/** The place of an output: outputs of a group may be exchanged, in which nothing else is between figures and tables. */
interface Place {
  node: HTMLElement;
  group: number;
  rank: number;
  /** Its place among the rank's outputs in the group. */
  turn: number;
}

interface Block {
  node: HTMLElement;
  text: string;
  dispose: () => void;
}

export class OutputView {
  private look: Look = "merged";
  private search = "";
  private unfolded = false;
  private lines: Line[] = [];
  private text = "";
  private ranks = "";
  private timer = 0;
  /** Whether the newest lines stay in sight: a person who reads further up is left alone. */
  private follows = true;
  private blocks: Block[] = [];
  private choice = h("select", {});
  private field = h("input", { type: "search" });
  private found = h("span", { class: "dtrain-quiet", role: "status" });
  private fold = h("button", { type: "button", class: "dtrain-small" });
  private more = h("button", { type: "button", class: "dtrain-output-more" });
  private body = h("div", { class: "dtrain-output-text", tabIndex: 0, role: "region" });
  private node: HTMLElement;

  constructor(
    private cell: OutputCell,
    private trans: TranslationBundle,
  ) {
    const { choice, field, fold, more } = this;
    choice.setAttribute("aria-label", trans.__("Output of"));
    field.setAttribute("aria-label", trans.__("Search the output"));
    field.placeholder = trans.__("Search");
    this.body.setAttribute("aria-label", trans.__("Output"));
    const bar = h("div", { class: "dtrain-output-bar", role: "toolbar" }, choice, field, this.found, fold);
    bar.setAttribute("aria-label", trans.__("Output"));
    this.node = h("div", { class: "dtrain-output", hidden: true }, bar, this.body);
    choice.onchange = () => {
      const { value } = choice;
      this.look = /^\d+$/.test(value) ? Number(value) : (value as Look);
      this.draw();
    };
    field.oninput = () => {
      this.search = field.value;
      this.draw();
    };
    fold.onclick = more.onclick = () => {
      this.follows = this.unfolded;
      this.unfolded = !this.unfolded;
      this.draw();
    };
    // Drawing moves the text, too, so only what a person does is taken as reading further up.
    this.body.onwheel =
      this.body.onpointerdown =
      this.body.onkeydown =
        () => {
          this.follows = false;
        };
    this.body.onscroll = () => {
      const { scrollTop, clientHeight, scrollHeight } = this.body;
      this.follows ||= scrollTop + clientHeight >= scrollHeight - NEAR;
    };
    // Notebook shortcuts must not take what is typed here.
    this.node.onkeydown = (event) => {
      event.stopPropagation();
    };
    cell.outputArea.node.classList.add("dtrain-outputs");
    // JupyterLab counts the nodes before a new output's place: ours is behind all of them.
    cell.outputArea.node.append(this.node);
    cell.model.outputs.changed.connect(this.later);
    cell.model.outputs.stateChanged.connect(this.later);
    cell.disposed.connect(() => {
      clearTimeout(this.timer);
    });
    this.read();
  }

  private later = (): void => {
    this.timer ||= window.setTimeout(() => {
      this.timer = 0;
      if (!this.cell.isDisposed) this.read();
    }, CALM);
  };

  /** Take the outputs as they are now. */
  private read(): void {
    const { outputs } = this.cell.model;
    const { widgets } = this.cell.outputArea;
    const texts: string[] = [];
    const places: Place[] = [];
    let caption: Origin | null = null;
    let group = 0;
    for (let index = 0; index < outputs.length; index += 1) {
      const { type, data, metadata, streamText } = outputs.get(index);
      streamText?.changed.connect(this.later); // once, however often it is called
      const origin = (metadata.dtrain ?? {}) as Origin;
      const node = widgets[index]?.node;
      const text = textOf(type, data, origin);
      const kind: string =
        text !== null ? "text" : origin.caption === true ? "caption" : caption !== null ? "side" : "other";
      if (text !== null) texts.push(text);
      if (node !== undefined && node.dataset.dtrain !== kind) node.dataset.dtrain = kind;
      if (node !== undefined && kind === "side") node.dataset.dtrainRanks = this.caption(caption!);
      const alone = kind !== "caption" && kind !== "side" ? 1 : 0;
      group += alone;
      if (node !== undefined) places.push({ node, group, rank: origin.rank ?? origin.ranks?.[0] ?? 0, turn: 0 });
      group += alone;
      caption = kind === "caption" ? origin : null;
    }
    arrange(places);
    const text = texts.join("");
    if (text !== this.text) {
      this.text = text;
      this.lines = linesOf(text);
    }
    this.draw();
  }

  private caption({ rank, ranks }: Origin): string {
    if (ranks === undefined) return this.trans.__("Rank %1", rank);
    return this.trans.__("Ranks %1", ranks.join(", "));
  }

  private draw(): void {
    const { lines, trans, look, search } = this;
    const ranks = ranksIn(lines);
    this.offer(ranks);
    const long = lines.length > UNFOLDED;
    this.node.hidden = !long && (ranks.length < 2 || lines.length < FEW) && look === "merged" && search === "";
    const folded = long && !this.unfolded;
    const selected = look !== "merged" || search !== "";
    const own = !this.node.hidden && (selected || folded);
    this.cell.outputArea.node.classList.toggle("dtrain-output-own", own);
    this.body.hidden = !own;
    setText(this.fold, folded ? trans.__("Show all") : trans.__("Collapse"));
    this.fold.setAttribute("aria-expanded", String(!folded));
    const shown = own ? select(lines, look, search) : [];
    const all = trans._n("%2 line", "%2 lines", lines.length, count(lines.length));
    setText(this.found, selected ? trans.__("%1 of %2", count(shown.length), all) : all);
    const cut = folded && shown.length > UNFOLDED ? shown.length - UNFOLDED : 0;
    this.fold.hidden = !long || (selected && shown.length <= UNFOLDED);
    setText(this.more, trans.__("%1 more lines: show them", count(cut)));
    const ends = [shown.slice(0, HEAD), shown.slice(HEAD - UNFOLDED)];
    this.show(cut > 0 ? ends : blocksOf(shown), cut > 0);
    this.follow();
  }

  private follow = (): void => {
    if (this.follows && !this.body.hidden) this.body.scrollTop = this.body.scrollHeight;
  };

  /** Offer the ranks to choose from. */
  private offer(ranks: number[]): void {
    const { trans, choice, look } = this;
    const now = ranks.join();
    if (now === this.ranks && choice.options.length > 0) return;
    this.ranks = now;
    const offered: [string, string][] = [
      ["merged", trans.__("As printed")],
      ["each", trans.__("A line for each rank")],
      ["differences", trans.__("Differences only")],
      ...ranks.map((rank): [string, string] => [String(rank), trans.__("Rank %1", rank)]),
    ];
    choice.replaceChildren(...offered.map(([value, words]) => new Option(words, value)));
    choice.value = String(look);
    choice.hidden = ranks.length < 2;
  }

  private show(blocks: string[][], cut: boolean): void {
    const texts = blocks.map((lines) => lines.join("\n"));
    while (this.blocks.length > texts.length) this.blocks.pop()!.dispose();
    texts.forEach((text, index) => {
      if (this.blocks[index]?.text === text) return;
      this.blocks[index]?.dispose();
      this.blocks[index] = this.block(text);
    });
    const nodes = this.blocks.map((block) => block.node);
    if (cut) nodes.splice(1, 0, this.more);
    if (nodes.some((node, index) => this.body.children[index] !== node) || this.body.children.length !== nodes.length) {
      this.body.replaceChildren(...nodes);
    }
  }

  /** JupyterLab draws the text, so that colours and links are as everywhere. */
  private block(text: string): Block {
    const { rendermime } = this.cell.outputArea;
    const renderer = rendermime.createRenderer(STDOUT);
    const drawn = renderer.renderModel(rendermime.createModel({ data: { [STDOUT]: text }, trusted: false }));
    void drawn
      .catch(() => {
        renderer.node.textContent = text;
      })
      .then(this.follow);
    return {
      node: renderer.node,
      text,
      dispose: () => {
        renderer.node.remove();
        renderer.dispose();
      },
    };
  }
}

/** The printed text of an output; null for figures, tables and all else. */
function textOf(type: string, data: Record<string, unknown>, { line }: Origin): string | null {
  if (type === "stream") return (data[STDOUT] ?? data[STDERR] ?? "") as string;
  return line === true ? `${data[PLAIN] as string}\n` : null;
}

/** Put the first output of each rank side by side, then the second: a rank shows all of its own before another's. */
function arrange(places: Place[]): void {
  const turns = new Map<string, number>();
  for (const place of places) {
    const key = `${place.group}/${place.rank}`;
    place.turn = turns.get(key) ?? 0;
    turns.set(key, place.turn + 1);
  }
  places.sort((one, other) => one.group - other.group || one.turn - other.turn || one.rank - other.rank);
  places.forEach(({ node }, index) => {
    node.style.order = String(index);
  });
}

function blocksOf(lines: string[]): string[][] {
  const blocks: string[][] = [];
  for (let first = 0; first < lines.length; first += BLOCK) blocks.push(lines.slice(first, first + BLOCK));
  return blocks;
}
