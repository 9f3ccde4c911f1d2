import { describe, expect, it, vi } from "vitest";
import type { Course, StepRow, StepTimePart } from "../src/generated";
import { barsOf, spentOf } from "../src/lab/runs/stepTimes";
import type { Chosen } from "../src/lab/runs/figures";
import { barOf, decodeCourse, inkOn, labelOf, SpentBars, stacked, StepTimeView, wordsOf } from "../src/stepTime";
import { themeOf } from "../src/theme";

const PARTS = ["data", "forward", "communication"];
const USUAL: StepRow = ["ranks 0,2-3", 3, 0.1, [0.1, 0.6, 0.3], 0];
const SLOW: StepRow = ["rank 1", 1, 0.1, [0.4, 0.6, 0], 1];

function course(seconds: number[], shares: number[][], ranks: number[] = []): Course {
  const bytes = new Uint8Array(new Float32Array(seconds).buffer);
  const text = (one: Uint8Array | number[]): string => btoa(String.fromCharCode(...one));
  return [ranks, 10, 5, text(bytes), text(shares.flat().map((share) => Math.round(255 * share)))];
}

function part(more: Partial<StepTimePart> = {}): StepTimePart {
  return {
    parts: PARTS,
    rows: [USUAL, SLOW],
    mean: ["ranks 0-3", 4, 0.1, [0.2, 0.6, 0.2], 0],
    slow: [["slow loader", [1], "Rank 1 spends 40% of a step in loading data.", "Try more workers.", 0.3]],
    courses: [
      course(
        [0.1, 0.2],
        [
          [0.2, 0.6],
          [0.6, 0.2],
          [0.2, 0.2],
        ],
      ),
    ],
    ...more,
  };
}

const theme = themeOf(document.body);
const options = { theme, range: null, marks: [] };

function view(changed: () => void = () => undefined): StepTimeView {
  return new StepTimeView(() => undefined, changed);
}

describe("bars of a step", () => {
  it("say in words what they show, and mark the slow rank by a sign", () => {
    const bars = new SpentBars();
    bars.update(
      PARTS,
      [USUAL, SLOW].map((row) => barOf(row)),
      theme,
    );
    const rows = [...bars.node.querySelectorAll("[role=listitem]")];
    expect(rows.map((row) => row.getAttribute("aria-label"))).toEqual([
      "ranks 0,2-3, 100 ms a step: loading data 10 %, forward pass 60 %, communication 30 %",
      "rank 1, slow, 100 ms a step: loading data 40 %, forward pass 60 %",
    ]);
    expect(rows.map((row) => row.querySelector(".dtrain-spent-label")!.textContent)).toEqual([
      "ranks 0,2-3",
      "▲ rank 1",
    ]);
    const pieces = [...rows[1]!.querySelectorAll<HTMLElement>(".dtrain-spent-piece")];
    expect(pieces.map((piece) => piece.hidden)).toEqual([false, false, true]);
    expect(pieces[2]!.classList.contains("dtrain-spent-waits")).toBe(true);
  });

  it("tell communication apart by its calls, in words and in the readout", () => {
    const bars = new SpentBars();
    const split: StepRow = ["ranks 0,2-3", 3, 0.1, [0.1, 0.6, 0.3], 0, [0.2, 0.1, 0]];
    const calls = ["all_gather", "reduce_scatter", "broadcast"];
    bars.update(
      PARTS,
      [split, SLOW].map((row) => barOf(row, calls)),
      theme,
    );
    const row = bars.node.querySelector("[role=listitem]")!;
    expect(row.getAttribute("aria-label")).toBe(
      "ranks 0,2-3, 100 ms a step: loading data 10 %, forward pass 60 %, " +
        "communication 30 % (all_gather 20 %, reduce_scatter 10 %)",
    );
    const readout = bars.node.querySelector<HTMLElement>(".dtrain-readout")!;
    const lines = (): (string | null)[] =>
      [...readout.querySelectorAll(".dtrain-spent-readout > div")].map((line) => line.textContent);
    row.querySelector(".dtrain-spent-piece")!.dispatchEvent(new Event("pointermove", { bubbles: true }));
    expect(lines()).toEqual([
      "loading data10.0 ms10 %",
      "forward pass60.0 ms60 %",
      "communication30.0 ms30 %",
      "all_gather20.0 ms20 %",
      "reduce_scatter10.0 ms10 %",
    ]);
    bars.update(PARTS, [barOf(SLOW, calls)], theme);
    expect(lines()).toEqual(["loading data40.0 ms40 %", "forward pass60.0 ms60 %"]);
  });

  it("are as long as a step takes, and keep their nodes when they change", () => {
    const bars = new SpentBars();
    const rows = [barOf(USUAL), { ...barOf(SLOW), seconds: 0.2 }];
    bars.update(PARTS, rows, theme);
    const found = [...bars.node.querySelectorAll<HTMLElement>(".dtrain-spent-bar")];
    expect(found.map((bar) => bar.style.width)).toEqual(["50%", "100%"]);
    bars.update(PARTS, rows.slice(0, 1), theme);
    expect([...bars.node.querySelectorAll(".dtrain-spent-bar")]).toEqual(found.slice(0, 1));
    expect(found[0]!.style.width).toBe("100%");
  });

  it("have the words that fit into a piece", () => {
    expect(labelOf("data", 0.3, 200)).toBe("loading data 30 %");
    expect(labelOf("data", 0.3, 50)).toBe("30 %");
    expect(labelOf("data", 0.3, 20)).toBe("");
  });

  it("count ranks that are too many to be named", () => {
    expect(barOf(["ranks 0-4,6-16,18-63", 62, 0.1, [], 0]).label).toBe("62 ranks");
    expect(wordsOf([], barOf(USUAL))).toContain("ranks 0,2-3");
  });

  it("have words that can be read on each colour", () => {
    expect([inkOn("#0072b2"), inkOn("#5d3a9b"), inkOn("#e69f00"), inkOn("#d55e00")]).toEqual([
      "#fff",
      "#fff",
      "#111",
      "#111",
    ]);
  });
});

describe("a course", () => {
  const found = decodeCourse(part().courses![0]!, PARTS);

  it("has its stretches at their steps", () => {
    expect(found.places).toEqual([12.5, 17.5]);
    expect(found.whole).toEqual([10, 20]);
  });

  it("is stacked in milliseconds from end to end", () => {
    const [places, zero, data, , all] = stacked(found);
    expect(places).toEqual([10, 12.5, 17.5, 20]);
    expect(zero).toEqual([0, 0, 0, 0]);
    expect(data!.map((value) => Math.round(value!))).toEqual([20, 20, 120, 120]);
    expect(all!.map((value) => Math.round(value!))).toEqual([100, 100, 200, 200]);
  });

  it("has a gap where no steps were seen", () => {
    const gap = decodeCourse(course([NaN, 0.1], [[0, 1]]), ["data"]);
    expect(stacked(gap)[2]).toEqual([null, null, expect.closeTo(100, 3), expect.closeTo(100, 3)]);
  });
});

describe("the view of a panel", () => {
  it("is not there while no steps were seen", () => {
    const shown = view();
    shown.update(null, false, options);
    expect(shown.node.hidden).toBe(true);
  });

  it("has the sentences with their advice, and drops those that no longer hold", () => {
    const shown = view();
    shown.update(part(), false, options);
    const list = shown.node.querySelector<HTMLElement>(".dtrain-why")!;
    expect(list.textContent).toBe("Rank 1 spends 40% of a step in loading data. Try more workers. What this means");
    shown.update(part({ slow: [] }), false, options);
    expect(list.hidden).toBe(true);
    expect(list.childElementCount).toBe(0);
  });

  it("says what its times are", () => {
    const shown = view();
    shown.update(part({ batches: 4, on_host: true }), false, options);
    const about = shown.node.querySelector("summary")!.textContent;
    expect(about).toBe("Time of a step100 ms · mean of the last seconds · 4 batches a step · host’s clock");
    const parts = ["forward", "backward"];
    shown.update(part({ batches: 4, parts, mean: ["rank 0", 1, 0.1, [0.2, 0.4], 0] }), false, options);
    expect(shown.node.querySelector("summary")!.textContent).toContain(
      " · 4 batches a step, each 15.0 ms forward and backward",
    );
    shown.update(part(), true, options);
    expect(shown.node.querySelector("summary")!.textContent).toBe("Time of a step100 ms · mean of the run");
  });

  it("keeps the chosen rank while the course goes on", () => {
    const changed = vi.fn();
    const shown = view(changed);
    const two = [part().courses![0]!, course([0.1], [[1], [0], [0]], [1])];
    shown.update(part({ courses: two }), false, options);
    const select = shown.node.querySelector("select")!;
    expect([...select.options].map((option) => option.text)).toEqual(["mean of 4 ranks", "rank 1"]);
    select.value = "rank 1";
    select.dispatchEvent(new Event("change"));
    expect(changed).toHaveBeenCalled();
    shown.update(part({ courses: two, parts: ["data", "forward", "communication", "other"] }), false, options);
    expect(select.value).toBe("rank 1");
    expect(shown.node.querySelector(".dtrain-spent-legend")!.textContent).toContain("other code");
  });
});

describe("the Runs tab", () => {
  const chosen = (id: number, step: StepTimePart | null): Chosen => ({
    id,
    label: `w/${id}`,
    columns: { id, metrics: [], resources: [], step_time: step, epochs: [], resumes: null, first_step: 0, lineage: [] },
  });

  it("has a bar for each run, or for each rank, with the same parts", () => {
    const spent = spentOf([
      chosen(1, part()),
      chosen(2, null),
      chosen(3, part({ parts: ["data", "forward", "device"] })),
    ]);
    const mean = barsOf(spent, "mean");
    expect(mean.parts).toEqual(["data", "forward", "communication", "device"]);
    expect(mean.rows.map((row) => [row.label, row.shares])).toEqual([
      ["w/1", [0.2, 0.6, 0.2, 0]],
      ["w/3", [0.2, 0.6, 0, 0.2]],
    ]);
    expect(barsOf(spent, "ranks").rows.map((row) => row.label)).toEqual([
      "w/1 · ranks 0,2-3",
      "w/1 · rank 1",
      "w/3 · ranks 0,2-3",
      "w/3 · rank 1",
    ]);
  });
});
