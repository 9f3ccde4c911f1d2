import { describe, expect, it } from "vitest";
import { nameNode, nameParts, placeBeside } from "../src/dom";

describe("a name", () => {
  it("keeps its end, in which names of one family differ", () => {
    expect(nameParts("loss")).toEqual(["loss", ""]);
    for (const end of ["top1", "top5"]) {
      const name = `validation/a_rather_long_metric_${end}`;
      const [head, tail] = nameParts(name);
      expect(head + tail).toBe(name);
      expect(tail.endsWith(end)).toBe(true);
      expect([nameNode(name, "x").textContent, nameNode(name, "x").title]).toEqual([name, name]);
    }
  });
});

describe("a readout", () => {
  it("stays within its chart, wherever the cursor is and however wide it is", () => {
    for (const wide of [40, 150, 290]) {
      for (let at = 0; at <= 300; at += 10) {
        const readout = document.createElement("div");
        Object.defineProperty(readout, "offsetWidth", { value: wide });
        placeBeside(readout, at, 300);
        const left = Number.parseFloat(readout.style.left);
        expect(left).toBeGreaterThanOrEqual(0);
        expect(left + wide).toBeLessThanOrEqual(300);
        if (wide === 40) expect(left > at || left + wide < at).toBe(true);
      }
    }
  });
});
