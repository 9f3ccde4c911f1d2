import { describe, expect, it } from "vitest";
import { metricFigures, metricNames, resourceFigures, styleOf, withSlots, type Chosen } from "../src/lab/runs/figures";
import { fileName } from "../src/lab/runs/files";
import { aligned, lineOf, meanOf, nearest, pointsOf, thinned, type Points } from "../src/lab/runs/lines";
import { clicked, NEWEST, sorted } from "../src/lab/runs/sorting";
import { drawSvg, type Picture } from "../src/lab/runs/svg";
import { endingOfStored, tagsOf } from "../src/lab/runs/client";
import { endingOf, outcomeWords } from "../src/outcome";
import { logTicks, ticks } from "../src/lab/runs/ticks";
import type { Column, StoredRun } from "../src/lab/messages";

function column(values: (number | null)[], more: Partial<Column> = {}): Column {
  return {
    name: "loss",
    rank: 0,
    steps: values.map((_, index) => index),
    times: values.map((_, index) => index / 10),
    values,
    ...more,
  };
}

function points(xs: number[], ys: number[]): Points {
  return { xs, ys, bad: [] };
}

function run(id: number, more: Partial<StoredRun> = {}): StoredRun {
  const none = { name: "", note: "", tags: [], kept: false, remark: "", source: "", losses: [] };
  return {
    id,
    ...none,
    code: "",
    group: "",
    heading: "",
    notebook: "",
    cell: null,
    resumes: null,
    training: true,
    values: [],
    place: null,
    world: "w",
    number: id,
    ranks: 2,
    size: 2,
    outcome: "ok",
    started: id,
    elapsed: 1,
    ending: "ok",
    ...more,
  };
}

function chosen(id: number, metrics: Column[], resources: Column[] = []): Chosen {
  const alone = { step_time: null, epochs: [], resumes: null, first_step: 0, lineage: [] };
  return { id, slot: id, label: `w/${id}`, columns: { id, metrics, resources, ...alone } };
}

describe("lines", () => {
  it("leave out what is not finite, and remember where it was", () => {
    expect(pointsOf(column([1, null, 3]), "step")).toEqual({ xs: [0, 2], ys: [1, 3], bad: [1] });
    expect(pointsOf(column([1, null, 3]), "time")).toEqual({ xs: [0, 0.2], ys: [1, 3], bad: [0.1] });
  });

  it("go on to the right when a run goes back to an earlier step", () => {
    expect(pointsOf(column([1, 2, 3], { steps: [5, null, 2] }), "step")).toEqual(points([2, 5], [3, 1]));
  });

  it("are smoothed with a correction for the start, and keep what was there before", () => {
    const about = { run: 1, rank: null, label: "", style: styleOf(0) };
    const line = lineOf(points([0, 1, 2], [4, 0, 0]), 0.5, about);
    expect(line.ys[0]).toBe(4);
    expect(line.ys[1]).toBeCloseTo(4 / 3);
    expect(line.ys[2]).toBeCloseTo(4 / 7);
    expect(line.raw).toEqual([4, 0, 0]);
    expect(lineOf(points([0], [4]), 0, about).raw).toBeNull();
  });

  it("average ranks that log at other steps by the values on their lines", () => {
    expect(meanOf([points([0, 2, 4], [0, 2, 4]), points([1, 3], [11, 13])])).toEqual(
      points([0, 1, 2, 3, 4], [0, 6, 7, 8, 4]),
    );
    expect(meanOf([points([0, 1], [1, 2]), points([0, 1], [3, 4])])).toEqual(points([0, 1], [2, 3]));
  });

  it("keep both extremes and both ends when they are thinned", () => {
    const ys = Array.from({ length: 10_000 }, (_, index) => (index === 777 ? 50 : index === 9001 ? -50 : index % 7));
    const found = thinned(
      points(
        ys.map((_, index) => index),
        ys,
      ),
      100,
    );
    expect(found.xs.length).toBeLessThanOrEqual(100);
    expect([found.xs[0], found.xs.at(-1)]).toEqual([0, 9999]);
    expect(found.ys[found.xs.indexOf(777)]).toBe(50);
    expect(found.ys[found.xs.indexOf(9001)]).toBe(-50);
  });

  it("share one axis, and tell the value nearest to a place", () => {
    expect(aligned([points([0, 2], [1, 2]), points([1, 2], [3, 4])])).toEqual([
      [0, 1, 2],
      [1, null, 2],
      [null, 3, 4],
    ]);
    expect([0.4, 0.6, 2.05, 3].map((x) => nearest([0, 1, 2], x, 0.1))).toEqual([0, 1, 2, null]);
  });
});

describe("charts", () => {
  const runs = [
    chosen(0, [column([3], { name: "tokens/s" }), column([1, 2]), column([3, 4], { rank: 1 })]),
    chosen(1, [column([5])], [column([9e9], { name: "gpu used", steps: [null] }), column([1], { name: "gpu total" })]),
  ];
  const options = { axis: "step" as const, spread: "mean" as const, smoothing: 0 };

  it("show losses first, and one line a run or a rank", () => {
    expect(metricNames(runs)).toEqual(["loss", "tokens/s"]);
    const [mean] = metricFigures(runs, ["loss"], options);
    expect(mean!.lines.map((line) => [line.label, line.ys])).toEqual([
      ["w/0", [2, 3]],
      ["w/1", [5]],
    ]);
    const [each] = metricFigures(runs, ["loss"], { ...options, spread: "ranks" });
    expect(each!.lines.map((line) => line.label)).toEqual(["w/0 · 0", "w/0 · 1", "w/1 · 0"]);
    expect(new Set(each!.lines.map((line) => JSON.stringify(line.style))).size).toBe(3);
  });

  it("show what ranks use over time in its units, without what never changes", () => {
    expect(resourceFigures(runs, options).map(({ title, unit, axis }) => [title, unit, axis])).toEqual([
      ["GPU memory, all processes", "bytes", "time"],
    ]);
  });

  it("tell forty lines apart by colour and dashes", () => {
    const styles = Array.from({ length: 40 }, (_, slot) => JSON.stringify(styleOf(slot)));
    expect(new Set(styles).size).toBe(40);
    expect(styleOf(1).dash).not.toBe(styleOf(0).dash);
    // Those of tests/store/test_reading.py.
    const some = [...withSlots(new Map(), [17, 9, 42]).values()].map(styleOf);
    expect(some.map(({ colour, dash }) => [colour, dash])).toEqual([
      [1, 0],
      [2, 1],
      [3, 2],
    ]);
    expect(styleOf(withSlots(withSlots(new Map(), [3, 4]), [12]).get(12)!).colour).toBe(5);
    expect(
      withSlots(
        new Map(),
        Array.from({ length: 100 }, (_, id) => id),
      ).size,
    ).toBe(100);
  });
});

describe("the table", () => {
  const loss = (last: number | null): Pick<StoredRun, "losses"> => ({
    losses: [{ name: "loss", last, best: 1, step: 3 }],
  });

  it("is sorted by any column, and runs without a value come last both ways", () => {
    const runs = [run(1, loss(0.5)), run(2), run(3, loss(0.1)), run(10, loss(null))];
    const ids = (key: "last" | "run" | "started", descending: boolean): number[] =>
      sorted(runs, { key, descending }).map((one) => one.id);
    expect(ids("last", false)).toEqual([3, 1, 10, 2]);
    expect(ids("last", true)).toEqual([1, 3, 10, 2]);
    expect(ids("run", false)).toEqual([1, 2, 3, 10]);
    expect(sorted(runs, NEWEST)[0]!.id).toBe(10);
  });

  it("turns its order around at a second click", () => {
    const once = clicked(NEWEST, "best");
    expect(once).toEqual({ key: "best", descending: false });
    expect(clicked(once, "best").descending).toBe(true);
  });

  it("reads tags from text", () => {
    expect(tagsOf(" a, b,,a ")).toEqual(["a", "b"]);
  });
});

describe("a picture", () => {
  const [title, marked, plain] = ['loss <of> "a" & b', "w/1 <first>", "w/2"];
  const picture: Picture = {
    title,
    axis: "step",
    curves: [
      {
        ...{ label: marked, colour: "#123456", dash: [8, 4], raw: [10, 1], bad: [5] },
        ...{ xs: [0, 10], ys: [1, 100] },
      },
      { label: plain, colour: "#654321", dash: [], raw: null, bad: [], xs: [0, 4, 10], ys: [1, -1, 10] },
    ],
    x: [0, 10],
    y: [1, 100],
    log: true,
    colours: { text: "#000", grid: "#ccc", page: "#fff", alarm: "#c00" },
    formatX: String,
    formatY: String,
  };
  const parsed = new DOMParser().parseFromString(drawSvg(picture).text, "image/svg+xml");
  const paths = [...parsed.querySelectorAll("g path")].map((path) => path.getAttribute("d"));

  it("is well formed, with its title and a legend", () => {
    expect(parsed.querySelector("parsererror")).toBeNull();
    const words = [...parsed.querySelectorAll("text")].map((text) => text.textContent);
    expect(words).toEqual(expect.arrayContaining([title, marked, plain, "step", "1", "10", "100"]));
    expect(parsed.querySelector('[stroke="#123456"][stroke-dasharray="8 4"]')).not.toBeNull();
  });

  it("draws curves from edge to edge, what was there before smoothing, and only what a logarithm has", () => {
    expect(paths.slice(1)).toEqual(["M74 376L784 36", "M74 376L784 206"]);
    expect(paths[0]).toBe("M74 206L784 376");
    expect(parsed.querySelectorAll('[fill="#c00"]').length).toBe(1);
  });

  it("has round numbers on its axes", () => {
    expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(ticks(3, 3, 5)).toEqual([3]);
    expect(logTicks(0.5, 2000)).toEqual([1, 10, 100, 1000]);
    expect(logTicks(1.5, 30)).toEqual([2, 5, 10, 20]);
    expect(fileName("train/loss of rank 0", "svg")).toBe("train-loss-of-rank-0.svg");
  });
});

describe("the ending of a run", () => {
  it("names a run that ranks did not outlive, in the list and in its panel", () => {
    expect(endingOf("lost", [], "").words).toBe("died");
    expect(outcomeWords("error")).toBe("error");
  });

  it("is not well when its loss is no number, though every rank ended well", () => {
    expect(endingOfStored(run(1))).toMatchObject({ outcome: "ok", words: "ok" });
    expect(endingOfStored(run(1, { ending: "ok, but NaN" }))).toMatchObject({ outcome: "nan", words: "ok, but NaN" });
    expect(endingOfStored(run(1, { outcome: "error", ending: "error" })).words).toBe("error");
  });

  it("says what became of lost ranks when it went on without them, and only then", () => {
    const remark = "rank 1 was replaced";
    const found = endingOfStored(run(1, { remark, ending: `ok, ${remark}` }));
    expect(found).toMatchObject({ outcome: "ok", words: "ok, rank 1 was replaced" });
    expect(found.title).toBe("It went on when ranks died, and ended well.");
    expect(endingOfStored(run(1, { remark, outcome: "interrupted", ending: "interrupted" })).words).toBe("interrupted");
  });
});
