import { nullTranslator } from "@jupyterlab/translation";
import { describe, expect, it } from "vitest";
import { isNews, isTold, stepsOf } from "../src/lab/items";
import type { Item, Launcher, RunSummary, World } from "../src/lab/messages";
import { atFirst, choose, fieldsOf, optionsOf, problemsOf } from "../src/lab/startFields";

const trans = nullTranslator.load("jupyter_dtrain");

const title = "";

const launcher: Launcher = {
  name: "local",
  title,
  cores: 2,
  gpus: 0,
  default_ranks: 2,
  schema: {
    properties: {
      n: { title, description: "", type: "integer", minimum: 1, maximum: 1024, main: true },
      name: { title, description: "", type: "string", main: true },
      env: { title, description: "", type: "object" },
      chief: { title, description: "", type: "boolean" },
    },
  },
};

describe("the start dialog", () => {
  it("has ranks and name first, and the rest under more options", () => {
    const { main, more } = fieldsOf(launcher);
    expect([main.map(([name]) => name), more.map(([name]) => name)]).toEqual([
      ["n", "name"],
      ["env", "chief"],
    ]);
    expect(atFirst([launcher], null)).toEqual({ launcher: "local", fields: { n: "2" } });
    expect(atFirst([launcher], 8).fields).toEqual({ n: "8" });
  });

  it.each([
    [{ n: "0" }, { n: "Enter a whole number from 1 to 1024." }],
    [{ n: "1.5" }, { n: "Enter a whole number from 1 to 1024." }],
    [{ n: "", env: " " }, {}],
    [{ env: "A=1 FOO" }, { env: "Write NAME=value." }],
  ])("finds errors before anything is sent: %j", (fields, problems) => {
    expect(problemsOf(launcher, { launcher: "local", fields }, trans)).toEqual(problems);
  });

  it("leaves the number of ranks to a launcher whose options decide it", () => {
    const hosts: Launcher = { ...launcher, name: "hosts", cores: 0, default_ranks: 0 };
    const typed = { launcher: "local", fields: { n: "4", name: "a" } };
    const there = choose([launcher, hosts], typed, "hosts");
    expect(there).toEqual({ launcher: "hosts", fields: { n: "", name: "a" } });
    expect(choose([launcher, hosts], there, "local")).toEqual({ launcher: "local", fields: { n: "2", name: "a" } });
  });

  it("sends only what was typed", () => {
    const fields = { n: "4", name: "", env: "A=1", chief: true };
    expect(optionsOf(launcher, { launcher: "local", fields })).toEqual({ n: 4, env: { A: "1" }, chief: true });
  });
});

function item(more: Partial<Item>): Item {
  const known = { id: "i", world: "w", name: "w", run: null, cell: "", ranks: [], words: "", detail: "", time: 100 };
  return { ...known, kind: "dead", level: "error", count: 1, ...more };
}

describe("an item of attention", () => {
  const steps = (one: Item, world: string | null, cell = false): string[] =>
    stepsOf(one, {
      worlds: { find: () => (world === null ? undefined : ({ state: world } as World)) } as never,
      hasCell: () => cell,
    });

  it("has its next step", () => {
    expect(steps(item({ kind: "dead" }), "running")).toEqual(["heal", "restart"]);
    expect(steps(item({ kind: "dead" }), null)).toEqual([]);
    expect(steps(item({ kind: "hung", cell: "c" }), "running", true)).toEqual(["stacks", "cell"]);
    expect(steps(item({ kind: "nan", run: 3, cell: "c" }), "running", true)).toEqual(["cell"]);
    expect(steps(item({ kind: "nan", run: 3, cell: "c" }), null)).toEqual(["run"]);
    expect(steps(item({ kind: "slow", run: 3 }), "running")).toEqual(["run"]);
    expect(steps(item({ kind: "start" }), "failed")).toEqual(["start"]);
  });

  it("becomes a notification while it is fresh, as the settings say", () => {
    expect(isTold(item({}), "errors", 101, true)).toBe(true);
    expect(isTold(item({}), "errors", 200, true)).toBe(false);
    expect(isTold(item({ level: "warning" }), "errors", 101, true)).toBe(false);
    expect(isTold(item({ kind: "failed" }), "all", 101, true)).toBe(false);
    expect(isTold(item({ kind: "failed" }), "all", 101, false)).toBe(true);
  });

  it("becomes none if it is a prompt of the notebook that the person looks at", () => {
    const prompt = item({ kind: "asks", level: "info" });
    expect(isTold(prompt, "all", 101, true, true)).toBe(false);
    expect(isTold(prompt, "all", 101, true, false)).toBe(true);
    expect(isTold(prompt, "all", 101, false, true)).toBe(true);
    expect(isTold(prompt, "warnings", 101, true, false)).toBe(false);
  });

  it("is not made of a run that went well: that is news for a person who was away", () => {
    const run = { outcome: "ok", started: 0, ended: 20 } as RunSummary;
    expect(isNews(run, "all", false)).toBe(true);
    expect(isNews(run, "all", true)).toBe(false);
    expect(isNews(run, "warnings", false)).toBe(false);
    expect(isNews({ ...run, ended: 5 }, "all", false)).toBe(false);
    expect(isNews({ ...run, outcome: "error" }, "all", false)).toBe(false);
  });
});
