import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { PromptPart } from "../src/generated";
import { StaleBoxes, type Asked } from "../src/lab/staleBoxes";
import { PromptRows, type Answerer } from "../src/prompts";

function asks(more: Partial<PromptPart> = {}): PromptPart {
  return {
    ranks: [0, 1],
    numbers: [1, 1],
    kind: "input",
    text: "name? ",
    place: "cell [3], line 2",
    said: "",
    ...more,
  };
}

function debugs(number: number, said: string, rank = 1): PromptPart {
  return asks({ ranks: [rank], numbers: [number], kind: "debugger", text: "(Pdb) ", said });
}

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
  document.body.replaceChildren();
});

describe("the prompts of a run", () => {
  let answers: [number, Record<number, number>, string | null][] = [];
  let instead = "";
  let refused = "";
  const answerer: Answerer = {
    get instead() {
      return instead;
    },
    answer: (run, prompts, text) => {
      answers.push([run, prompts, text]);
      return refused === "" ? Promise.resolve() : Promise.reject(new Error(refused));
    },
  };
  const made = (can = true): PromptRows => {
    const rows = new PromptRows(() => (can ? answerer : null));
    document.body.append(rows.node);
    return rows;
  };
  const fields = (): HTMLInputElement[] => [...document.querySelectorAll<HTMLInputElement>("input:not([hidden])")];
  const type = async (field: HTMLInputElement, text: string): Promise<void> => {
    field.value = text;
    field.form!.requestSubmit();
    await vi.advanceTimersByTimeAsync(0);
  };

  beforeEach(() => {
    answers = [];
    instead = refused = "";
  });

  it("are answered once for all ranks that ask the same", async () => {
    const rows = made();
    rows.update(7, "Ranks 0-1 are at a prompt (cell [3], line 2).", [asks({ numbers: [1, 4] })]);
    expect(document.querySelector(".dtrain-asked")!.textContent).toContain("Ranks 0-1 are at a prompt");
    expect(fields()[0]!.getAttribute("aria-label")).toBe("Ranks 0-1: name?");
    await type(fields()[0]!, "Ada");
    expect(answers).toEqual([[7, { 0: 1, 1: 4 }, "Ada"]]);
    expect(fields()[0]!.value).toBe("");
    rows.update(7, "", []);
    expect(fields()).toEqual([]);
    expect(rows.node.classList.contains("dtrain-prompts-open")).toBe(false);
  });

  it("keep what a person types while another rank joins", () => {
    const rows = made();
    rows.update(7, "", [asks({ ranks: [1], numbers: [1] })]);
    const [field] = fields();
    field!.value = "half";
    rows.update(7, "", [asks()]);
    expect(fields()).toEqual([field]);
    expect(field!.value).toBe("half");
    // The same question once more is another one.
    rows.update(7, "", [asks({ numbers: [2, 2] })]);
    expect(fields()[0]!.value).toBe("");
  });

  it("hide a password, and say what is wrong with an answer without it", async () => {
    const rows = made();
    rows.update(7, "", [asks({ kind: "password", text: "Token: " })]);
    expect(fields()[0]!.type).toBe("password");
    refused = "Rank 1 has ended.";
    await type(fields()[0]!, "hidden");
    expect(document.querySelector("[role=alert]")!.textContent).toBe("Rank 1 has ended.");
    expect(fields()[0]!.value).toBe("hidden");
    expect(document.body.innerHTML).not.toContain("hidden</");
  });

  it("keep the row and the words of a debugger from one command to the next", async () => {
    const rows = made();
    rows.update(7, "", [debugs(1, "> cell [3](2)\n")]);
    const [field] = fields();
    field!.focus();
    await type(field!, "p loss");
    rows.update(7, "", []);
    rows.update(7, "", [debugs(2, "1.5\n")]);
    expect(fields()).toEqual([field]);
    expect(document.activeElement).toBe(field);
    expect(document.querySelector("pre")!.textContent).toBe("> cell [3](2)\n(Pdb) p loss\n1.5\n");
    rows.update(7, "", []);
    await vi.advanceTimersByTimeAsync(5000);
    expect(fields()).toEqual([]);
  });

  it("leave the focus to the next question", () => {
    const rows = made();
    rows.update(7, "", [asks(), debugs(1, "", 2)]);
    fields()[0]!.focus();
    rows.update(7, "", [debugs(1, "", 2)]);
    expect(document.activeElement).toBe(fields()[0]);
  });

  it("have no field where nobody can answer, and name who can", () => {
    instead = "Open a.ipynb to answer.";
    made().update(7, "Ranks 0-1 are at a prompt.", [asks()]);
    expect(fields()).toEqual([]);
    expect(document.querySelector(".dtrain-prompt-instead")!.textContent).toBe("Open a.ipynb to answer.");
    document.body.replaceChildren();
    made(false).update(7, "Ranks 0-1 are at a prompt.", [asks()]);
    expect(fields()).toEqual([]);
    expect(document.querySelector<HTMLElement>(".dtrain-prompt-instead")!.hidden).toBe(true);
  });
});

describe("a box of JupyterLab's", () => {
  const model = { id: "c", executionState: "running" };
  const kernel = { hasPendingInput: true };
  let boxes: object[] = [];
  let asked: Asked = null;

  const open = (label: string): object => {
    const node = document.createElement("div");
    node.className = "jp-OutputArea-stdin-item";
    node.innerHTML = `<pre class="jp-Stdin-prompt"></pre>`;
    node.firstChild!.textContent = label;
    const box = {
      node,
      isDisposed: false,
      dispose: () => {
        box.isDisposed = true;
        boxes = boxes.filter((one) => one !== box);
      },
    };
    boxes.push(box);
    return box;
  };

  const cell = {
    model,
    outputArea: {
      get widgets() {
        return boxes;
      },
    },
  };
  const stale = (): StaleBoxes =>
    new StaleBoxes({ content: { widgets: [cell] }, sessionContext: { session: { kernel } } } as never, () => asked);
  /** Look again and again for so long. */
  const wait = (look: StaleBoxes, milliseconds: number): void => {
    look.look();
    vi.advanceTimersByTime(milliseconds);
    look.look();
    look.destroy();
  };

  beforeEach(() => {
    boxes = [];
    asked = null;
    model.executionState = "running";
    kernel.hasPendingInput = true;
  });

  it("stays while its question is open, or may be", () => {
    const box = open("ranks 0-1: name? ");
    wait(stale(), 30_000);
    asked = [asks()];
    wait(stale(), 30_000);
    expect(boxes).toEqual([box]);
    expect(kernel.hasPendingInput).toBe(true);
  });

  it("goes a moment after its question, and other cells can run", () => {
    const box = open("ranks 0-1: name? ");
    const look = stale();
    asked = [asks()];
    look.look();
    asked = [asks({ text: "other? " })];
    wait(look, 500);
    expect(boxes).toEqual([box]);
    wait(look, 3000);
    expect(boxes).toEqual([]);
    expect(kernel.hasPendingInput).toBe(false);
  });

  it("goes when a newer one has come, and when its cell has ended", () => {
    open("rank 1 (Pdb) ");
    const newer = open("ranks 0-2, at 1 (Pdb) ");
    stale().look();
    expect(boxes).toEqual([newer]);
    model.executionState = "idle";
    stale().look();
    expect(boxes).toEqual([]);
  });

  it("goes at once when the page has answered for its rank", async () => {
    const box = open("ranks 0-2, at 1 (Pdb) ");
    const look = stale();
    look.answer([0, 2], Promise.resolve());
    look.answer([1], Promise.reject(new Error("refused")));
    await vi.advanceTimersByTimeAsync(0);
    expect(boxes).toEqual([box]);
    look.answer([1], Promise.resolve());
    await vi.advanceTimersByTimeAsync(0);
    expect(boxes).toEqual([]);
  });

  it("is let alone if it is a person's own", () => {
    const box = open("Number of ranks? ");
    asked = [];
    model.executionState = "idle";
    wait(stale(), 60_000);
    expect(boxes).toEqual([box]);
  });
});
