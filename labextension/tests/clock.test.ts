import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { clock } from "../src/format";
import { RunModel } from "../src/model";
import type { RunDocument } from "../src/runDocument";

const document = (elapsed: number, outcome = "running"): RunDocument =>
  ({
    ...{ version: 1, run: 1, size: 1, nodes: ["host"], words: {}, bars: [], metrics: [] },
    ...{ elapsed, outcome, ranks: [[0, 0, "running", 7]] },
  }) as unknown as RunDocument;

describe("the clock of a run", () => {
  let model: RunModel;

  beforeEach(() => {
    vi.useFakeTimers();
    model = new RunModel();
  });

  afterEach(() => {
    vi.useRealTimers();
  });

  it("goes on between messages, in whole seconds, and tells all listeners at the same moment", () => {
    model.load(document(95.4));
    const said: string[] = [];
    const copy = new RunModel();
    const stop = model.listen(() => said.push(`sidebar ${clock(model.clock)}`));
    const leave = copy.mirror(model);
    vi.advanceTimersByTime(700);
    expect(said).toEqual(["sidebar 1:36"]);
    expect(copy.clock).toBe(model.clock);
    vi.advanceTimersByTime(1000);
    expect(said.at(-1)).toBe("sidebar 1:37");
    expect(copy.clock).toBe(97);
    stop();
    leave();
    vi.advanceTimersByTime(5000);
    expect(said).toHaveLength(2);
    expect(vi.getTimerCount()).toBe(0);
  });

  it("does not go back when a message took longer than those before", () => {
    model.load(document(10));
    vi.advanceTimersByTime(3000);
    model.update(document(11.2)); // 1.8 s on its way
    expect(model.clock).toBe(13);
    model.update(document(40)); // another clock: the run goes on from there
    expect(model.clock).toBe(40);
  });

  it("ends with the number that the run has everywhere", () => {
    model.load(document(10));
    vi.advanceTimersByTime(3000);
    model.update(document(12.34, "ok"));
    expect(clock(model.clock)).toBe("12 s");
    expect(model.step).toBe(7);
  });

  it("shows another run's model after the one it mirrored, and forgets that one's points", () => {
    const points: RunDocument = { ...document(1), metrics: [{ name: "loss", series: [] }] };
    const stream = new RunModel();
    stream.load(points);
    const leave = model.mirror(stream);
    expect([...model.metrics.keys()]).toEqual(["loss"]);
    const { version } = model;
    leave();
    model.load(document(2, "ok"));
    expect(model.metrics.size).toBe(0);
    expect(stream.metrics.size).toBe(1);
    expect(model.version).toBeGreaterThan(version);
  });
});

describe("a duration", () => {
  it("is rounded down", () => {
    expect([0, 0.99, 9.99, 10, 59.99, 96.99, 3725.9].map(clock)).toEqual([
      "0 s",
      "0.9 s",
      "9.9 s",
      "10 s",
      "59 s",
      "1:36",
      "1:02:05",
    ]);
  });
});
