/**
 * Removes input boxes below cells whose question needs no answer any more.
 *
 * The kernel asks in JupyterLab's own box what ranks ask. A question that was answered elsewhere, or whose rank has
 * ended, is withdrawn in the kernel, which has no way to close the box: what a person types there would be lost, or
 * would answer the next question. So a box goes when this page has answered its question in another place, when a newer
 * box has come, when its cell has ended, and when its run has no such prompt any more.
 */

import type { Kernel } from "@jupyterlab/services";
import type { PromptPart } from "../generated";

/** Milliseconds for which a question is gone when its box goes: the news of the next one may be on their way. */
const GONE = 1200;

/** The same for a box whose question the page has never heard of. */
const UNKNOWN = 10_000;

/** The label that the kernel gives such a box: the ranks, the one whose debugger it is, and the question. */
const LABEL = /^ranks? (\d+)(?:[,-]\d+)*(?:, at (\d+))?:? (.*)$/s;

interface Box {
  readonly node: HTMLElement;
  readonly isDisposed: boolean;
  dispose(): void;
}

/** A box of ours: the rank that asks, or the lowest of several, and its question. */
interface Asking {
  box: Box;
  rank: number;
  text: string;
  /** Whether it can be answered no more, for what its cell looks like. */
  over: boolean;
  cell: string;
}

/** The parts of JupyterLab's notebook that are used here. */
interface Boxes {
  readonly content: {
    readonly widgets: readonly {
      readonly model: { readonly id: string; readonly executionState?: string };
      readonly outputArea?: { readonly widgets: readonly Box[] };
    }[];
  };
  readonly sessionContext: { readonly session: { readonly kernel: Kernel.IKernelConnection | null } | null };
}

/** What the run of a cell asks: null while the page does not know. */
export type Asked = readonly PromptPart[] | null;

export class StaleBoxes {
  /** Of each box, when its question was last open as far as the page knows, and whether it has ever known. */
  private seen = new WeakMap<Box, { last: number; known: boolean }>();
  private timer = 0;
  /** How many boxes there are, a person's own included. */
  private left = 0;

  constructor(
    private notebook: Boxes,
    /** What the run of the cell with this id asks; none where no run of it goes on. */
    private asked: (cell: string) => Asked,
  ) {}

  /** Remove the boxes that are over. */
  look(): void {
    clearTimeout(this.timer);
    const now = performance.now();
    this.remove(this.find().filter((one) => one.over || this.isGone(one, now)));
    if (this.left > 0) {
      this.timer = window.setTimeout(() => {
        this.look();
      }, GONE);
    }
  }

  /** This page answers what these ranks ask: once that was `sent`, the boxes go that are there now. */
  answer(ranks: readonly number[], sent: Promise<unknown>): void {
    const found = this.find().filter(({ rank }) => ranks.includes(rank));
    sent.then(
      () => {
        this.find();
        this.remove(found.filter(({ box }) => !box.isDisposed));
      },
      () => undefined,
    );
  }

  destroy(): void {
    clearTimeout(this.timer);
  }

  /** The boxes with questions of ranks. */
  private find(): Asking[] {
    const found: Asking[] = [];
    this.left = 0;
    for (const { model, outputArea } of this.notebook.content.widgets) {
      const boxes = (outputArea?.widgets ?? []).filter(
        ({ node }) => node.matches(".jp-OutputArea-stdin-item") && !node.matches(".jp-OutputArea-stdin-hiding"),
      );
      this.left += boxes.length;
      for (const [place, box] of boxes.entries()) {
        const [, first, at, text] = LABEL.exec(box.node.querySelector(".jp-Stdin-prompt")?.textContent ?? "") ?? [];
        if (first === undefined || text === undefined) continue; // a person's own input()
        const over = model.executionState === "idle" || place < boxes.length - 1;
        found.push({ box, rank: Number(at ?? first), text: text.trimEnd(), over, cell: model.id });
      }
    }
    return found;
  }

  private isGone({ box, rank, text, cell }: Asking, now: number): boolean {
    const seen = this.seen.get(box) ?? { last: now, known: false };
    this.seen.set(box, seen);
    const asked = this.asked(cell);
    const asks = asked?.some((part) => part.ranks.includes(rank) && part.text.trimEnd() === text) ?? true;
    if (asks) {
      seen.last = now;
      seen.known ||= asked !== null;
    }
    return !asks && now > seen.last + (seen.known ? GONE : UNKNOWN);
  }

  private remove(found: readonly Asking[]): void {
    // JupyterLab gives the focus to the cell of a box that goes; whoever types elsewhere stays there.
    const focused = document.activeElement;
    for (const { box } of found) box.dispose();
    this.left -= found.length;
    if (found.length > 0 && focused instanceof HTMLElement && focused.isConnected && focused !== document.body) {
      focused.focus({ preventScroll: true });
    }
    const kernel = this.notebook.sessionContext.session?.kernel;
    // Else JupyterLab runs no other cell, for a box that is not there.
    if (this.left === 0 && kernel?.hasPendingInput === true) kernel.hasPendingInput = false;
  }
}
