import { afterEach, describe, expect, it, vi } from "vitest";
import type uPlot from "uplot";
import type { Range } from "../src/layout";
import { Plot, type Content } from "../src/plot";
import type { Theme } from "../src/theme";

/** As many pixels as places, and no canvas: what uPlot does with its data is its own affair. */
const made = vi.hoisted(() => [] as { data: (number | null)[][]; options: uPlot.Options; ended: boolean }[]);
vi.mock("uplot", () => ({
  default: class {
    static pxRatio = 1;
    over = document.createElement("div");
    bbox = { left: 0, top: 0, width: 100, height: 100 };
    width = 100;
    height = 50;
    cursor = {};
    private own: (typeof made)[number];

    constructor(options: uPlot.Options, data: (number | null)[][]) {
      this.own = { options, data, ended: false };
      made.push(this.own);
    }

    get data(): (number | null)[][] {
      return this.own.data;
    }

    setData(data: (number | null)[][]): void {
      this.own.data = data;
    }

    setSize = (): void => undefined;
    setCursor = (): void => undefined;
    valToPos = (value: number): number => value;
    valToIdx = (value: number): number => Math.round(value / 10);

    destroy(): void {
      this.own.ended = true;
    }
  },
}));

const theme = { dark: false, text: "black", grid: "grey", alarm: "red" } as Theme;

function content(more: Partial<Content> = {}): Content {
  return {
    ...{ height: 50, right: 0, theme, log: false, range: null, whole: [0, 40], bad: [], marks: [], bands: [] },
    data: [
      [0, 10, 20, 30, 40],
      [1, 0, -1, null, 2],
    ],
    series: [{ stroke: "blue" }],
    axes: { x: {}, y: {} },
    formatX: String,
    formatY: String,
    fill: (readout, place) => {
      readout.textContent = `at ${place}`;
    },
    ...more,
  };
}

/** A plot that is 100 pixels wide, and what it zoomed to. */
function plotted(more: Partial<Content> = {}): { plot: Plot; zooms: (Range | null)[] } {
  const zooms: (Range | null)[] = [];
  const plot = new Plot((range) => zooms.push(range));
  Object.defineProperty(plot.frame, "clientWidth", { value: 100 });
  plot.update(content(more));
  return { plot, zooms };
}

function press(plot: Plot, key: string, more: KeyboardEventInit = {}): boolean {
  return !plot.frame.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true, ...more }));
}

afterEach(() => {
  made.length = 0;
});

describe("the keys of a plot", () => {
  it("read the values from place to place, beginning at the newest and staying within the ends", () => {
    const { plot } = plotted();
    const read = ["ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight"].map((key) => {
      expect(press(plot, key)).toBe(true);
      return plot.readout.textContent;
    });
    expect(read).toEqual(["at 40", "at 30", "at 40", "at 40"]);
    plot.frame.dispatchEvent(new Event("blur"));
    expect(plot.readout.hidden).toBe(true);
  });

  it("zoom around the cursor within the whole, and show all when nothing is left out", () => {
    const { plot, zooms } = plotted({ range: [0, 20] });
    for (const key of ["+", "=", "-", "0", "Escape"]) press(plot, key);
    plot.update(content({ range: [10, 40] }));
    press(plot, "ArrowLeft");
    for (const key of ["+", "-"]) press(plot, key);
    expect(zooms).toEqual([[5, 15], [5, 15], [0, 30], null, null, [32.5, 40], [10, 40]]);
  });

  it("are the page's where they are not the plot's", () => {
    const { plot, zooms } = plotted();
    expect([press(plot, "a"), press(plot, "+", { ctrlKey: true }), press(plot, "Escape")]).toEqual([
      false,
      false,
      true,
    ]);
    plot.update(content({ whole: null }));
    expect(press(plot, "Escape")).toBe(false);
    expect(zooms).toEqual([null]);
  });
});

describe("a plot", () => {
  it("is made anew only when something changes that uPlot cannot change", () => {
    const { plot } = plotted();
    plot.update(content({ range: [0, 10] }));
    expect(made.length).toBe(1);
    for (const more of [{ log: true }, { theme: { ...theme, text: "white" } }, { series: [{ stroke: "green" }] }]) {
      plot.update(content(more));
    }
    expect(made.map((one) => one.ended)).toEqual([true, true, true, false]);
  });

  it("has no values on a logarithmic axis that have no logarithm", () => {
    plotted({ log: true });
    expect(made[0]!.data[1]).toEqual([1, null, null, null, 2]);
  });

  it("gives room to a lone place", () => {
    plotted({ whole: [7, 7] });
    expect((made[0]!.options.scales!.x!.range as unknown as () => Range)()).toEqual([6.5, 7.5]);
  });
});
