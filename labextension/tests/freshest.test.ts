import { describe, expect, it } from "vitest";
import { Freshest } from "../src/freshest";

/** A source that has the events of two ranks up to these. */
function model(...reach: number[]): { outcome: string; reach: number[] } {
  return { outcome: "running", reach };
}

describe("two sources of one run", () => {
  it("show the stream's, and the kernel's only after the stream was late for a second", () => {
    const freshest = new Freshest();
    const stream = model(4, 4);
    const kernel = model(5, 4);
    expect(freshest.kernelLeads(stream, kernel, 0)).toBe(false);
    kernel.reach = [9, 9];
    expect(freshest.kernelLeads(stream, kernel, 900)).toBe(false);
    expect(freshest.kernelLeads(stream, kernel, 1100)).toBe(true);
    // The stream has what was missing, and a little less than the kernel: going to it would be going back.
    stream.reach = [8, 9];
    expect(freshest.kernelLeads(stream, kernel, 1200)).toBe(true);
    stream.reach = [9, 10];
    expect(freshest.kernelLeads(stream, kernel, 1300)).toBe(false);
  });

  it("a stream that is always a little behind, and never by a second, stays", () => {
    const freshest = new Freshest();
    const stream = model(0, 0);
    const kernel = model(0, 0);
    for (let now = 0; now < 10_000; now += 500) {
      kernel.reach = [now + 500, now + 500];
      expect(freshest.kernelLeads(stream, kernel, now)).toBe(false);
      stream.reach = [now, now];
      expect(freshest.kernelLeads(stream, kernel, now + 250)).toBe(false);
    }
  });

  it("the kernel's never takes over where it lacks what the stream has shown", () => {
    const freshest = new Freshest();
    const stream = model(9, 1);
    const kernel = model(4, 5);
    freshest.kernelLeads(stream, kernel, 0);
    expect(freshest.kernelLeads(stream, kernel, 5000)).toBe(false);
    kernel.reach = [9, 6];
    expect(freshest.kernelLeads(stream, kernel, 5100)).toBe(true);
  });

  it("a stream whose run has ended has everything, and without one the kernel leads", () => {
    const freshest = new Freshest();
    const ended = { outcome: "ok", reach: [] };
    expect(freshest.kernelLeads(null, model(7), 0)).toBe(true);
    expect(freshest.kernelLeads(ended, model(7), 0)).toBe(false);
    expect(freshest.kernelLeads(ended, model(9), 9000)).toBe(false);
  });
});
