import { describe, expect, it } from "vitest";
import { readDocument, type Status } from "../src/runDocument";
import { Receiver } from "../src/receiver";

const status: Status = {
  version: 1,
  run: 1,
  size: 1,
  outcome: "running",
  elapsed: 1,
  nodes: ["a"],
  ranks: [[0, 0, "running"]],
  words: {},
  bars: [],
};

function documentOf(count: number, seq: number, outcome: Status["outcome"] = "running"): DataView {
  const values = btoa(String.fromCharCode(...new Uint8Array(new Float32Array(count).buffer)));
  const metrics = [{ name: "loss", series: [[0, [0, 1, count], values]] }];
  return new DataView(new TextEncoder().encode(JSON.stringify({ ...status, outcome, metrics, seq })).buffer);
}

function news(receiver: Receiver, seq: number, first: number, count: number): void {
  receiver.receive({ seq, status, names: ["loss"], series: [[0, 0, count, first, 1]] }, [
    new DataView(new Float32Array(count).fill(1).buffer),
    new DataView(new ArrayBuffer(0)),
  ]);
}

const steps = (receiver: Receiver): number[] => {
  const column = receiver.model.metrics.get("loss")?.columns.get(0);
  return column === undefined ? [] : [...column.steps.subarray(0, column.length)];
};
const upTo = (count: number): number[] => Array.from({ length: count }, (_, index) => index);

describe("what a widget receives", () => {
  it("is taken in order, and a document without news changes nothing", () => {
    const receiver = new Receiver();
    receiver.take(documentOf(0, 0));
    news(receiver, 0, 0, 5);
    receiver.take(documentOf(4, 1));
    news(receiver, 1, 5, 5);
    expect(steps(receiver)).toEqual(upTo(10));
  });

  it("is completed by the next document when messages were missed", () => {
    const receiver = new Receiver();
    receiver.take(documentOf(0, 0));
    news(receiver, 0, 0, 5);
    news(receiver, 3, 15, 5);
    news(receiver, 4, 20, 5);
    expect(steps(receiver)).toEqual(upTo(5));
    receiver.take(documentOf(20, 4));
    expect(steps(receiver)).toEqual(upTo(25));
    news(receiver, 5, 25, 5);
    expect(steps(receiver)).toEqual(upTo(30));
  });

  it("does not go back to an older document, nor count a message twice", () => {
    const receiver = new Receiver();
    receiver.take(documentOf(20, 4));
    news(receiver, 3, 15, 5);
    expect(steps(receiver)).toEqual(upTo(20));
    news(receiver, 6, 30, 5);
    receiver.take(documentOf(10, 2));
    expect(steps(receiver)).toEqual(upTo(20));
  });

  it("ends with the outcome of the last document", () => {
    const receiver = new Receiver();
    receiver.take(documentOf(5, 1));
    receiver.take(documentOf(5, 1, "interrupted"));
    expect(receiver.model.outcome).toBe("interrupted");
    expect(steps(receiver)).toEqual(upTo(5));
  });

  it("frees its points when the run is over and no view is open, and restores them for a later view", () => {
    const receiver = new Receiver();
    receiver.take(documentOf(0, 0));
    news(receiver, 0, 0, 500);
    receiver.take(documentOf(50, 1, "ok"));
    receiver.drop();
    expect(receiver.model.metrics.size).toBe(0);
    receiver.take(documentOf(50, 1, "ok"));
    expect(steps(receiver)).toEqual(upTo(50));
  });

  it("takes steps that are not even from the second buffer", () => {
    const receiver = new Receiver();
    receiver.take(documentOf(0, 0));
    receiver.receive(
      {
        seq: 0,
        status,
        names: ["loss"],
        series: [
          [0, 0, 2],
          [0, 0, 1, 7, 1],
        ],
      },
      [new DataView(Float32Array.of(1, 2, 3).buffer), new DataView(Float64Array.of(2, 5).buffer)],
    );
    expect(steps(receiver)).toEqual([2, 5, 7]);
  });
});

describe("a document", () => {
  it("of a newer version, or of another kind, is refused with a clear message", () => {
    expect(() => readDocument({ ...status, version: 2, metrics: [] })).toThrow("newer jupyter-dtrain");
    expect(() => readDocument("text")).toThrow("not a jupyter-dtrain run");
    expect(() => readDocument(null)).toThrow("not a jupyter-dtrain run");
    expect(() => readDocument({ version: 1 })).toThrow("not a jupyter-dtrain run");
  });
});
