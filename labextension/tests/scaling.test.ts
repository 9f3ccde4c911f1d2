import { describe, expect, it } from "vitest";
import type { ScalingDocument, SizeRow } from "../src/generated";
import { readScaling, ScalingView } from "../src/scaling";

function size(ranks: number, parts: Partial<SizeRow> = {}): SizeRow {
  return {
    ranks,
    seconds: 10 / ranks,
    low: 9 / ranks,
    high: 11 / ranks,
    speedup: ranks,
    speedup_low: ranks > 1 ? ranks * 0.8 : null,
    speedup_high: ranks > 1 ? ranks * 1.1 : null,
    linear: ranks,
    efficiency: 1,
    batch: 64 / ranks,
    shares: [
      ["communication", 0.25],
      ["data", 0.05],
    ],
    ...parts,
  };
}

function shown(parts: Partial<ScalingDocument> = {}): HTMLElement {
  const root = document.createElement("div");
  const report = {
    version: 1,
    summary: "Scaling of a cell",
    sizes: [size(1), size(2)],
    conclusions: ["good"],
    ...parts,
  };
  new ScalingView(root).update(readScaling(report));
  return root;
}

describe("a scaling report", () => {
  it("has a row for each size, with the range of its runs", () => {
    const rows = [...shown().querySelectorAll("tbody tr")].map((row) =>
      [...row.children].map((cell) => cell.textContent),
    );
    expect(rows).toEqual([
      ["1", "10.00 s (9.00 to 11.00)", "1.00", "100 %", "64"],
      ["2", "5.00 s (4.50 to 5.50)", "2.00 (1.60 to 2.20)", "100 %", "32"],
    ]);
  });

  it("shows how time is spent; work is what no cause takes", () => {
    const root = shown();
    const bars = [...root.querySelectorAll(".dtrain-scaling-bar")];
    expect(bars.map((bar) => bar.getAttribute("aria-label"))).toEqual([
      "1 rank: work 70 %, communication 25 %, data 5 %",
      "2 ranks: work 70 %, communication 25 %, data 5 %",
    ]);
    const legend = [...root.querySelectorAll(".dtrain-scaling-legend")].at(-1)!;
    expect([...legend.children].map((part) => part.textContent)).toEqual(["work", "communication", "data"]);
    expect(root.querySelector(".dtrain-scaling-plot")!.getAttribute("aria-label")).toBe(
      "Speed-up: 1 rank 1.00, 2 ranks 2.00",
    );
  });

  it("names a size that failed, and inserts words as text", () => {
    const failed = size(4, { seconds: null, speedup: null, efficiency: null, low: null, high: null, shares: [] });
    const root = shown({ sizes: [size(1), failed], conclusions: ["4 ranks: <img src=x>"] });
    expect(root.querySelector("tbody tr:last-child")!.textContent).toBe("4not measured");
    expect(root.querySelector("img")).toBeNull();
    expect(root.querySelector("li")!.textContent).toBe("4 ranks: <img src=x>");
    expect(root.querySelector<HTMLElement>(".dtrain-scaling-charts")!.hidden).toBe(true);
  });

  it("refuses what it cannot read, with the reason", () => {
    expect(() => readScaling({ version: 2, sizes: [], conclusions: [] })).toThrow("newer jupyter-dtrain");
    expect(() => readScaling(null)).toThrow("not a jupyter-dtrain scaling report");
  });
});
