import { describe, expect, it } from "vitest";
import { Freshest } from "../src/freshest";
import { RunModel } from "../src/model";

/** A model that has the events of two ranks up to these. */
function model(...reach: number[]): RunModel {
  return Object.assign(new RunModel(), { reach });
}

describe("two models of one run", () => {
  it("show the stream's, and the kernel's only after the stream was late for a second", () => {
    const freshest = new Freshest();
    const stream = model(4, 4);
    const kernel = model(5, 4);
    expect(freshest.choose(stream, kernel, 0)).toBe(stream);
    kernel.reach = [9, 9];
    expect(freshest.choose(stream, kernel, 900)).toBe(stream);
    expect(freshest.choose(stream, kernel, 1100)).toBe(kernel);
    // The stream has what was missing, and a little less than the kernel: going to it would be going back.
    stream.reach = [8, 9];
    expect(freshest.choose(stream, kernel, 1200)).toBe(kernel);
    stream.reach = [9, 10];
    expect(freshest.choose(stream, kernel, 1300)).toBe(stream);
  });

  it("a stream that is always a little behind, and never by a second, stays", () => {
    const freshest = new Freshest();
    const stream = model(0, 0);
    const kernel = model(0, 0);
    for (let now = 0; now < 10_000; now += 500) {
      kernel.reach = [now + 500, now + 500];
      expect(freshest.choose(stream, kernel, now)).toBe(stream);
      stream.reach = [now, now];
      expect(freshest.choose(stream, kernel, now + 250)).toBe(stream);
    }
  });

  it("the kernel's never takes over where it lacks what the stream has shown", () => {
    const freshest = new Freshest();
    const stream = model(9, 1);
    const kernel = model(4, 5);
    freshest.choose(stream, kernel, 0);
    expect(freshest.choose(stream, kernel, 5000)).toBe(stream);
    kernel.reach = [9, 6];
    expect(freshest.choose(stream, kernel, 5100)).toBe(kernel);
  });

  it("a stream whose run has ended has everything, and one source is enough", () => {
    const freshest = new Freshest();
    const stream = Object.assign(model(), { outcome: "ok" });
    expect(freshest.choose(stream, model(7), 0)).toBe(stream);
    expect(freshest.choose(null, stream, 0)).toBe(stream);
    expect(freshest.choose(stream, null, 0)).toBe(stream);
    expect(freshest.choose(null, null, 0)).toBeNull();
  });
});
