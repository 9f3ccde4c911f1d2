import { describe, expect, it } from "vitest";
import { styleOf } from "../src/lab/runs/colours";
import { metricFamilies, metricFigures, resourceFigures, type Chosen } from "../src/lab/runs/figures";
import { fileName } from "../src/lab/runs/files";
import { aligned, lineOf, meanOf, nearest, pointsOf, thinned, type Points } from "../src/lab/runs/lines";
import {
  columnOf,
  isAsked,
  keyOf,
  usualColumns,
  valueOf,
  withColumn,
  type Column as TableColumn,
} from "../src/lab/runs/columns";
import { conditionOf, conditionsOf, replaced, toggled, wantedOf } from "../src/lab/runs/conditions";
import { clicked, placeOf } from "../src/lab/runs/sorting";
import { drawSvg, type Picture } from "../src/lab/runs/svg";
import { endingOfStored, tagsOf } from "../src/lab/runs/client";
import { endingOf, outcomeWords } from "../src/outcome";
import { logTicks, ticks } from "../src/lab/runs/ticks";
import { queryOf } from "../src/lab/connection";
import type { Column, ColumnChoice, StoredRun } from "../src/lab/messages";

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

const LOSS = { title: "loss", names: ["loss"] };

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
  return { id, label: `w/${id}`, columns: { id, metrics, resources, ...alone } };
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
    const about = { run: 1, rank: null, label: "", style: styleOf(0), metric: "loss", mark: 0 };
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
    expect(metricFamilies(runs).map(({ title }) => title)).toEqual(["loss", "tokens/s"]);
    const [mean] = metricFigures(runs, [LOSS], options);
    expect(mean!.lines.map((line) => [line.label, line.ys])).toEqual([
      ["w/0", [2, 3]],
      ["w/1", [5]],
    ]);
    const [each] = metricFigures(runs, [LOSS], { ...options, spread: "ranks" });
    expect(each!.lines.map((line) => line.label)).toEqual(["w/0 · 0", "w/0 · 1", "w/1 · 0"]);
    expect(new Set(each!.lines.map((line) => JSON.stringify(line.style))).size).toBe(3);
  });

  it("show what ranks use over time in its units, without what never changes", () => {
    expect(resourceFigures(runs, options).map(({ title, unit, axis }) => [title, unit, axis])).toEqual([
      ["GPU memory, all processes", "bytes", "time"],
    ]);
  });

  it("tell forty runs apart by colour and dashes, which no other run changes", () => {
    const styles = Array.from({ length: 40 }, (_, id) => JSON.stringify(styleOf(id)));
    expect(new Set(styles).size).toBe(40);
    expect(styleOf(1).dash).not.toBe(styleOf(0).dash);
    // Those of tests/store/test_reading.py.
    expect([17, 9, 42].map(styleOf)).toEqual([
      { colour: 1, dash: 2 },
      { colour: 1, dash: 4 },
      { colour: 2, dash: 2 },
    ]);
    const [line] = metricFigures(runs, [LOSS], options)[0]!.lines.slice(1);
    expect(line!.style).toEqual(styleOf(1));
  });
});

describe("the table", () => {
  it("is sorted at the server, by one column or by several, in the direction in which one reads it first", () => {
    expect(clicked([], "config:lr", false)).toEqual(["config:lr"]);
    expect(clicked(["config:lr"], "config:lr", false)).toEqual(["-config:lr"]);
    expect(clicked([], "metric:val_acc:max", false)).toEqual(["-metric:val_acc:max"]);
    expect(clicked([], "metric:loss:last", false)).toEqual(["metric:loss:last"]);
    expect(clicked(["name"], "elapsed", true)).toEqual(["name", "-elapsed"]);
    expect(clicked(["name", "-elapsed"], "elapsed", true)).toEqual(["name", "elapsed"]);
    // The newest first is the order of a table that nobody has sorted.
    expect(clicked([], "started", false)).toEqual(["started"]);
    expect(clicked(["started"], "started", false)).toEqual([]);
    expect(placeOf([], "started")).toEqual({ place: 0, descending: true });
    expect(placeOf(["name"], "started")).toBeNull();
  });

  it("has columns with keys that the server knows, whatever is in a name", () => {
    const columns: TableColumn[] = [
      { kind: "config", name: "a:b:max" },
      { kind: "metric", name: "val: x\ny", how: "min" },
      { kind: "at", name: "loss", other: "val_acc", how: "max" },
      { kind: "field", name: "tags" },
    ];
    const keys = columns.map(keyOf);
    expect(keys).toEqual(["config:a:b:max", "metric:val: x\ny:min", "metric:loss:at:val_acc:max", "tags"]);
    expect(keys.map(columnOf)).toEqual(columns);
    expect(columnOf("nothing")).toBeNull();
    expect(columnOf("metric:loss:median")).toBeNull();
    expect(keys.filter(isAsked)).toEqual(keys.slice(0, 3));
    const listed = run(1, { values: ["x", 2] });
    expect(valueOf(listed, keys[1]!, keys.slice(0, 2))).toBe(2);
    expect(valueOf(listed, "config:other", keys)).toBeNull();
  });

  it("shows losses first, then a score and what differs between the runs", () => {
    const choice = (name: string, runs: number, distinct = 0): ColumnChoice => ({
      name,
      runs,
      distinct,
      numeric: true,
    });
    const metrics = [
      choice("val_acc", 5),
      choice("lr", 9),
      choice("val_loss", 5),
      choice("train_loss", 2),
      choice("loss", 9),
    ];
    const configs = [choice("lr", 9, 3), choice("epochs", 9, 1), choice("width", 9, 2)];
    const usual = usualColumns(configs, metrics);
    expect(usual.slice(0, 7)).toEqual([
      ...["last loss", "lowest loss", "metric:val_loss:min", "metric:val_acc:max"],
      ...["config:lr", "config:width", "outcome"],
    ]);
    expect(usualColumns([], []).slice(0, 3)).toEqual(["last loss", "lowest loss", "outcome"]);
  });

  it("gets a metric beside the others, and a field at its end", () => {
    const now = ["last loss", "config:lr", "outcome", "tags"];
    expect(withColumn(now, "metric:f1:max")).toEqual(["last loss", "config:lr", "metric:f1:max", "outcome", "tags"]);
    expect(withColumn(now, "group")).toEqual([...now, "group"]);
    expect(withColumn(["outcome"], "config:lr")).toEqual(["config:lr", "outcome"]);
  });

  it("reads tags from text", () => {
    expect(tagsOf(" a, b,,a ")).toEqual(["a", "b"]);
  });
});

describe("the filter", () => {
  it("is conditions, which quotes keep together", () => {
    expect(conditionsOf(' lr>1e-3  tag:"two words" "a \\" b" -x ')).toEqual([
      ...["lr>1e-3", 'tag:"two words"', '"a \\" b"', "-x"],
    ]);
    expect(conditionsOf('"not closed')).toEqual(['"not closed']);
    expect(conditionsOf("")).toEqual([]);
  });

  it("gets and loses conditions at a click", () => {
    expect(conditionOf("tag", "best")).toBe("tag:best");
    expect(conditionOf("tag", 'a "b" \\')).toBe('tag:"a \\"b\\" \\\\"');
    expect(conditionOf("world", "a*|b")).toBe('world:"a*|b"');
    expect(toggled("lr>1", "tag:best")).toBe("lr>1 tag:best");
    expect(toggled("lr>1 tag:best", "lr>1")).toBe("tag:best");
    expect(replaced("world:a lr>1", "world", "b c")).toBe('lr>1 world:"b c"');
    expect(replaced("world:a lr>1", "world", "")).toBe("lr>1");
    expect(wantedOf('x world:"b \\"c\\""', "world")).toBe('b "c"');
    expect(wantedOf("x", "world")).toBe("");
  });

  it("comes to the server as it is, and lists as one parameter several times", () => {
    expect(queryOf({ where: "a&b=1 +", columns: ["config:x", "config:y"], sort: [] })).toBe(
      "?where=a%26b%3D1+%2B&columns=config%3Ax&columns=config%3Ay",
    );
    expect(queryOf({})).toBe("");
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
