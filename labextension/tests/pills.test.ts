import { nullTranslator } from "@jupyterlab/translation";
import { describe, expect, it } from "vitest";
import { cellTarget } from "../src/lab/cellTarget";
import type { RunSummary, World } from "../src/lab/messages";
import { pillOf } from "../src/lab/pillText";
import { statusOf } from "../src/lab/status";

const trans = nullTranslator.load("jupyter_dtrain");

function world(run: Partial<RunSummary> | null, given: Partial<World> = {}): World {
  const whole = { number: 3, cell: "c1", step: null, ranks: [0, 1, 2, 3], outcome: "running", started: 0, ended: null };
  const newest = run === null ? null : ({ ...whole, states: { running: 4 }, ...run } as RunSummary);
  return {
    id: "w-1",
    name: "w",
    cwd: "/",
    state: "running",
    words: "",
    progress: "",
    failure: null,
    size: 4,
    ready: 4,
    nodes: 1,
    dead: 0,
    frameworks: [],
    started: 1,
    lease_end: null,
    left: "",
    driver: { pid: 1, name: "a.ipynb", words: "the notebook a.ipynb (pid 1)", kernel: "k1", there: true, auto: false },
    run: newest,
    runs: newest?.outcome === "running" ? [newest] : [],
    ...given,
  };
}

describe("a cell's target", () => {
  const at = (text: string, auto = false): string | null => {
    const found = cellTarget(text.split("\n"), auto);
    return found === null ? null : `${found.ranks ?? "all"} @${found.line}`;
  };

  it("is on its first line that is not blank", () => {
    expect(at("%%distributed\nx = 1")).toBe("all @0");
    expect(at("\n  %%distributed --ranks 0,2\nx")).toBe("0,2 @1");
    expect(at("%%distributed --no-wait -r 1-3")).toBe("1-3 @0");
    expect(at("%%distributed --ranks=-1")).toBe("-1 @0");
    expect(at("%%distributed -r all")).toBe("all @0");
    expect(at("%%rank 0\nx")).toBe("0 @0");
    expect(at("%%rank -1")).toBe("-1 @0");
    expect(at("%%rank --no-wait 0,2")).toBe("0,2 @0");
    expect(at("%%rank --timeout 5 1")).toBe("1 @0");
    expect(at("%%rank[0, 2]")).toBe("0,2 @0");
    expect(at("%%rank [1-2] --no-wait")).toBe("1-2 @0");
    expect(at("%%distributed -r [0,1]")).toBe("0,1 @0");
    expect(at('%%distributed -r "0, 1" -o run')).toBe("0, 1 @0");
    expect(at("%%distributed -r0,2")).toBe("0,2 @0");
    expect(at("%%distributed -i lr --pull loss")).toBe("all @0");
  });

  it("is null for other cells", () => {
    for (const text of [
      "",
      "x = 1",
      "%distributed start -n 4",
      "%%local\nx",
      "%%distributedly",
      "%%rank",
      "%%rank --no-wait",
      "%%distributed -h",
    ]) {
      expect(at(text)).toBeNull();
    }
  });

  it("is all ranks for every plain cell in auto mode, but those that stay", () => {
    expect(at("x = 1", true)).toBe("all @0");
    expect(at("\n# why\nx = 1", true)).toBe("all @1");
    for (const text of ["", "# why", "%%time\nx", "%load_ext a", "# on\n%distributed status", "exit()"]) {
      expect(at(text, true)).toBeNull();
    }
  });
});

describe("a pill", () => {
  const pill = (text: string, worlds: World[], kernel: string | null = "k1"): string | null => {
    const found = pillOf(text.split("\n"), "c1", kernel ?? undefined, worlds, trans);
    return found === null ? null : `${found.look}: ${found.text}`;
  };

  it("shows the cell's target, with and without a world", () => {
    expect(pill("%%distributed", [])).toBe("still: all ranks");
    expect(pill("%%rank 2", [world(null)])).toBe("still: rank 2");
    expect(pill("%%rank 0,2", [world(null)])).toBe("still: ranks 0,2");
    expect(pill("x", [world(null)])).toBeNull();
  });

  it("shows the progress of the cell's own run while it runs", () => {
    expect(pill("%%distributed", [world({})])).toBe("running: all ranks · running");
    expect(pill("%%distributed", [world({ step: 1200 })])).toBe("running: all ranks · running · step 1,200");
    // The news of a run that the page watches are newer than the list of worlds.
    const found = pillOf(["%%distributed"], "c1", "k1", [world({ step: 1 })], trans, () => 7);
    expect(found!.text).toBe("all ranks · running · step 7");
    const states = { running: 1, sent: 1, ok: 2 };
    expect(pill("%%distributed", [world({ states })])).toBe("running: all ranks · running · 2 of 4 done");
    expect(pill("%%distributed", [world({ states: { held: 4 }, step: 9 })])).toBe(
      "running: all ranks · paused · step 9",
    );
    const failed = world({ states: { running: 3, error: 1 } });
    expect(pill("%%distributed", [failed])).toBe("failing: all ranks · running · 1 of 4 error");
    expect(pill("%%distributed", [world({ outcome: "ok" })])).toBe("still: all ranks");
    expect(pill("%%distributed", [world({ cell: "c2" })])).toBe("still: all ranks");
  });

  it("ignores the world of another notebook whose cells have the same ids", () => {
    expect(pill("%%distributed", [world({})], "k2")).toBe("still: all ranks");
    expect(pill("%%distributed", [world({})], null)).toBe("still: all ranks");
  });

  it("is on plain cells while their kernel runs them on the ranks", () => {
    const auto = { pid: 1, name: "", words: "", kernel: "k1", there: true, auto: true };
    expect(pill("x = 1", [world(null, { driver: auto })])).toBe("still: all ranks");
    expect(pill("x = 1", [world(null, { driver: auto })], "k2")).toBeNull();
    expect(pill("x = 1", [world(null, { driver: { ...auto, there: false } })])).toBeNull();
  });
});

describe("the status", () => {
  it("is that of the world that the panel shows", () => {
    const idle = world(null);
    expect(statusOf([], null, 0, trans)).toBe("");
    expect(statusOf([idle], idle, 0, trans)).toBe("w · idle");
    const busy = world({ step: 12 });
    expect(statusOf([idle, busy], busy, 0, trans)).toBe("w (1 of 2 worlds) · run 3 · step 12");
    const paused = world({ states: { held: 3, ok: 1 } });
    expect(statusOf([paused], paused, 0, trans)).toBe("w · run 3 paused");
    const almost = world({ states: { held: 3, running: 1 } });
    expect(statusOf([almost], almost, 0, trans)).toBe("w · run 3");
    const hurt = world(null, { dead: 2 });
    expect(statusOf([hurt], hurt, 1, trans)).toBe("w · idle · 2 ranks dead · 1 needs attention");
  });
});
