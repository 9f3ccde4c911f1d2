import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { RecordedAct } from "../src/generated";
import { RunModel } from "../src/model";
import type { RunDocument } from "../src/runDocument";
import { canUndo, outputs, rateOf, Steering, type LoopAct, type Steered, type Steerer } from "../src/steering";

function run(more: Partial<RunDocument> = {}): RunDocument {
  return {
    version: 1,
    run: 7,
    size: 2,
    outcome: "running",
    elapsed: 1,
    nodes: ["host"],
    ranks: [
      [0, 0, "running", 12],
      [1, 0, "running", 12],
    ],
    words: {},
    bars: [],
    step: 12,
    metrics: [],
    ...more,
  };
}

function act(number: number, words: string, more: Partial<RecordedAct> = {}): RecordedAct {
  return { number, words, by: "the notebook a.ipynb", step: 5, at: 4, time: 0, said: `${words} was done`, ...more };
}

describe("a hand on the loop", () => {
  let asked: [number, LoopAct][] = [];
  let instead = "";
  let settle: { resolve: (found: Steered) => void; reject: (error: Error) => void };
  const steerer: Steerer = {
    get instead() {
      return instead;
    },
    steer: (number, what) => {
      asked.push([number, what]);
      return new Promise((resolve, reject) => {
        settle = { resolve, reject };
      });
    },
  };
  const model = new RunModel();
  let shown: Steering;
  const update = (more: Partial<RunDocument> = {}): void => {
    model.load(run(more));
    shown.update(model, model.outcome === "running");
  };
  const begin = (more: Partial<RunDocument> = {}, can = true, closed: (() => void) | null = null): void => {
    shown = new Steering(() => (can ? steerer : null), closed);
    document.body.append(shown.node);
    update(more);
  };
  const buttons = (): HTMLButtonElement[] =>
    [...document.querySelectorAll("button")].filter((one) => one.closest("[hidden]") === null);
  const names = (): string[] => buttons().map((one) => one.textContent);
  const press = (name: string): void => {
    buttons()
      .find((one) => one.textContent === name)!
      .click();
  };
  const told = (): string => document.querySelector("[role=status]")!.textContent;
  const problem = (): string => document.querySelector("[role=alert]")!.textContent;
  const becomes = async (found: Partial<Steered> | Error): Promise<void> => {
    if (found instanceof Error) settle.reject(found);
    else settle.resolve({ words: "done", step: 13, ranks: {}, ...found });
    await vi.waitFor(() => {
      expect(shown.node.getAttribute("aria-busy")).toBe("false");
    });
  };
  const points = (name: string, value: number): RunDocument["metrics"][number] => {
    const bytes = new Uint8Array(new Float32Array([value]).buffer);
    return { name, series: [[0, [0, 1, 1], btoa(String.fromCharCode(...bytes))]] };
  };

  beforeEach(() => {
    asked = [];
    instead = "";
  });

  afterEach(() => {
    document.body.replaceChildren();
  });

  it("is there while the loop of a run goes on that this page can steer", () => {
    begin({}, false);
    expect(shown.node.hidden).toBe(true);
    document.body.replaceChildren();
    begin();
    expect(shown.node.hidden).toBe(false);
    expect(names()).toEqual(["Pause", "Run between steps…", "End loop"]);
    update({ outcome: "ok" });
    expect(shown.node.hidden).toBe(true);
  });

  it("is not there for a cell without steps that has just begun, or that waits for its turn", () => {
    begin({ step: null, ranks: [[0, 0, "running"]] });
    expect(shown.node.hidden).toBe(true);
    update({ step: null, ranks: [[0, 0, "running"]], elapsed: 30 });
    expect(shown.node.hidden).toBe(false);
    update({ ranks: [[0, 0, "sent"]] });
    expect(shown.node.hidden).toBe(true);
  });

  it("says who can where this page cannot", () => {
    instead = "Open a.ipynb to steer this loop.";
    begin();
    expect(names()).toEqual([]);
    expect(shown.node.textContent).toContain(instead);
  });

  it("pauses, makes a step, and lets the loop go on", async () => {
    begin();
    press("Pause");
    expect(asked).toEqual([[7, { kind: "pause" }]]);
    expect(told()).toBe("All ranks come to the same step…");
    await becomes({ words: "All ranks are paused after step 13. %distributed resume lets them go on." });
    expect(told()).toBe("Paused after step 13.");
    update({ paused: 13 });
    expect(names()).toEqual(["Resume", "Step", "Run between steps…", "End loop"]);
    press("Step");
    await becomes({ step: 14 });
    expect(told()).toBe("Paused after step 14.");
    update({ paused: 14 });
    press("Resume");
    await becomes({ words: "The loop goes on after step 14." });
    expect(told()).toBe("The loop goes on after step 14.");
    expect(asked.map(([, { kind }]) => kind)).toEqual(["pause", "step", "resume"]);
  });

  it("takes one act at a time, and its buttons keep the focus meanwhile", async () => {
    begin();
    const end = buttons().at(-1)!;
    end.focus();
    press("End loop");
    press("Pause");
    expect(asked).toEqual([[7, { kind: "stop-after", count: 0 }]]);
    expect(buttons().every((one) => one.getAttribute("aria-disabled") === "true")).toBe(true);
    expect(document.activeElement).toBe(end);
    await becomes({ words: "The loop ended as asked." });
    expect(buttons().some((one) => one.hasAttribute("aria-disabled"))).toBe(false);
    expect(told()).toBe("The loop ended as asked.");
  });

  it("says why an act was refused, until the next", async () => {
    begin({ acts: [act(1, "set opt.lr=1")] });
    press("Pause");
    await becomes(new Error("Rank 1 makes no steps. Nothing was changed."));
    expect(problem()).toBe("Rank 1 makes no steps. Nothing was changed.");
    expect(told()).toContain("set opt.lr=1 was done");
    press("Pause");
    expect(problem()).toBe("");
  });

  it("sets the learning rate where a run logs one", async () => {
    begin({ metrics: [points("loss", 2), points("lr", 0.1)] });
    const field = document.querySelector<HTMLInputElement>("input")!;
    expect(field.placeholder).toBe("0.1");
    for (const wrong of ["", "fast", "1e999"]) {
      field.value = wrong;
      field.form!.requestSubmit();
      expect(problem()).toBe("Type the new learning rate as a number, such as 1e-4.");
    }
    expect(asked).toEqual([]);
    field.value = " 5e-2 ";
    field.form!.requestSubmit();
    expect(asked).toEqual([[7, { kind: "set", settings: [{ path: "optimizer.lr", value: "5e-2" }] }]]);
    await becomes({ words: "optimizer.lr: 0.1 -> 0.05 (ranks 0-1, after step 13)" });
    expect(field.value).toBe("");
    expect(told()).toBe("optimizer.lr: 0.1 -> 0.05 (ranks 0-1, after step 13)");
    // The act itself, which the stream brings later, says also who has asked for it.
    update({
      metrics: [points("lr", 0.05)],
      acts: [act(1, "set optimizer.lr=5e-2", { said: "optimizer.lr: 0.1 -> 0.05 (ranks 0-1, after step 13)" })],
    });
    expect(told()).toBe("optimizer.lr: 0.1 -> 0.05 (ranks 0-1, after step 13)by the notebook a.ipynb");
    expect(field.placeholder).toBe("0.05");
    press("Undo");
    expect(asked.at(-1)).toEqual([7, { kind: "undo" }]);
  });

  it("keeps what is typed when a rate is refused", async () => {
    begin({ metrics: [points("lr/0", 0.1)] });
    const field = document.querySelector<HTMLInputElement>("input")!;
    field.value = "0.5";
    field.form!.requestSubmit();
    await becomes(new Error("Ranks 0-1: there is no optimizer."));
    expect(field.value).toBe("0.5");
  });

  it("runs code, and shows equal output of ranks once", async () => {
    begin();
    const field = document.querySelector("textarea")!;
    press("Run between steps…");
    expect(document.activeElement).toBe(field);
    field.value = "print(loss)";
    field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
    expect(asked).toEqual([]);
    field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true }));
    expect(asked).toEqual([[7, { kind: "between", code: "print(loss)" }]]);
    await becomes({ words: "It ran.", ranks: { 0: "2.0\n", 1: "<b>\n", 2: "2.0\n", 3: "" } });
    const output = document.querySelector("[role=log]")!;
    expect([...output.children].map((one) => one.textContent)).toEqual(["ranks 0,2:", "2.0", "rank 1:", "<b>"]);
    expect(told()).toBe("It ran.");
    field.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    expect(field.form!.hidden).toBe(true);
    expect((document.activeElement as HTMLElement).textContent).toBe("Run between steps…");
  });

  it("keeps keys from the page's commands", () => {
    const heard = vi.fn();
    document.body.addEventListener("keydown", heard);
    begin();
    press("Run between steps…");
    document.querySelector("textarea")!.dispatchEvent(new KeyboardEvent("keydown", { key: "d", bubbles: true }));
    expect(heard).not.toHaveBeenCalled();
    document.body.removeEventListener("keydown", heard);
  });

  it("has the field for code alone where the sidebar asks for that", () => {
    const closed = vi.fn();
    begin({ step: null }, true, closed);
    expect(names()).toEqual(["Run", "Close"]);
    press("Close");
    expect(closed).toHaveBeenCalledOnce();
  });

  it("shows the newest act of all clients, and that it has failed", () => {
    begin({ acts: [act(1, "set a=1"), act(2, "between 1/0", { said: "It raised.", failed: true })] });
    expect(told()).toBe("It raised.between 1/0 · by the notebook a.ipynb");
    expect(document.querySelector(".dtrain-steering-failed")!.textContent).toBe("It raised.");
    update({ acts: [act(3, "pause", { said: "" })], paused: 20 });
    expect(told()).toBe("Paused after step 20.by the notebook a.ipynb");
  });

  it("knows the newest rate, what can be undone, and what ranks have in common", () => {
    model.load(run({ metrics: [points("lr/1", 0.3), points("lr/0", 1e-7)] }));
    expect(rateOf(model)).toBe("1e-7");
    model.load(run({ metrics: [points("lrate", 1)] }));
    expect(rateOf(model)).toBe("");
    expect(canUndo([act(1, "set a=1"), act(2, "undo")])).toBe(false);
    expect(canUndo([act(1, "undo"), act(2, "set a=1"), act(3, "pause")])).toBe(true);
    expect(canUndo([act(1, "set a=1", { failed: true })])).toBe(false);
    expect(outputs({ 0: "a", 1: "b", 2: "a", 3: " \n" })).toEqual([
      ["ranks 0,2", "a"],
      ["rank 1", "b"],
    ]);
  });
});
