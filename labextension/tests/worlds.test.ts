import { ServerConnection } from "@jupyterlab/services";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { assignments } from "../src/lab/assignments";
import { request } from "../src/lab/connection";
import type { Item, RankRow, RunSummary, World } from "../src/lab/messages";
import { Worlds } from "../src/lab/worlds";

/** The server's half of a stream, which a test controls. */
class Socket {
  static opened: Socket[] = [];
  readyState = 0;
  said: unknown[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;

  constructor(readonly url: string) {
    Socket.opened.push(this);
  }

  send(text: string): void {
    this.said.push(JSON.parse(text));
  }

  close(): void {
    this.end();
  }

  begin(): void {
    this.readyState = WebSocket.OPEN;
    this.onopen?.();
  }

  tell(message: unknown): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  end(): void {
    this.readyState = WebSocket.CLOSED;
    this.onclose?.();
  }
}

function settings(fetch?: typeof globalThis.fetch): ServerConnection.ISettings {
  return ServerConnection.makeSettings({
    baseUrl: "http://server.test/base/",
    wsUrl: "ws://server.test/base/",
    token: "a b",
    appendToken: true,
    WebSocket: Socket as unknown as typeof WebSocket,
    ...(fetch === undefined ? {} : { fetch }),
  });
}

function world(id: string, more: Partial<World> = {}): World {
  return {
    id,
    name: id,
    cwd: "/",
    state: "running",
    words: "",
    progress: "",
    failure: null,
    size: 2,
    ready: 2,
    nodes: 1,
    dead: 0,
    frameworks: [],
    started: 0,
    lease_end: null,
    left: "",
    driver: null,
    run: null,
    runs: [],
    ...more,
  };
}

function item(id: string): Item {
  return {
    id,
    kind: "dead",
    level: "error",
    world: "w",
    name: "w",
    run: null,
    cell: "",
    ranks: [0],
    words: id,
    detail: "",
    time: 0,
    count: 1,
  };
}

const row = (rank: number, state: RankRow[6], fresh = false): RankRow => [
  rank,
  0,
  "host",
  rank,
  "cpu",
  100 + rank,
  state,
  "",
  "",
  "",
  fresh,
];

function status(run: number, states: string[]): Record<string, unknown> {
  const ranks = states.map((state, rank) => [rank, 0, state, 5, 1000, 50]);
  return { version: 1, run, size: 2, outcome: "running", elapsed: 1, nodes: ["host"], ranks, words: {}, bars: [] };
}

const base64 = (values: number[]): string =>
  btoa(String.fromCharCode(...new Uint8Array(new Float32Array(values).buffer)));

describe("the worlds of a page", () => {
  let worlds: Worlds;
  const last = (): Socket => Socket.opened.at(-1)!;

  beforeEach(() => {
    vi.useFakeTimers();
    Socket.opened = [];
    worlds = new Worlds(settings());
  });

  afterEach(() => {
    worlds.dispose();
    vi.useRealTimers();
  });

  it("opens the stream with its token, and reconnects after increasing pauses", () => {
    expect(last().url).toBe("ws://server.test/base/dtrain/stream?token=a%20b");
    last().begin();
    expect(worlds.connected).toBe(true);
    last().end();
    expect(worlds.connected).toBe(false);
    const opened: number[] = [];
    for (let waited = 0; waited < 8000; waited += 100) {
      vi.advanceTimersByTime(100);
      if (last().readyState === 0) {
        opened.push(waited + 100);
        last().end();
      }
    }
    expect(opened).toEqual([500, 1500, 3500, 7500]);
    worlds.reconnect();
    last().begin();
    expect(worlds.connected).toBe(true);
  });

  it("watches the selected world only while something subscribes to it, also after a reconnect", () => {
    last().begin();
    last().tell({ type: "worlds", worlds: [world("old"), world("new", { started: 5 })] });
    expect(last().said).toEqual([]);
    worlds.want("panel", "");
    expect(last().said).toEqual([{ watch: ["new"] }]);
    worlds.select("old");
    worlds.want("pill", "new");
    expect(last().said.slice(1)).toEqual([{ watch: ["old"] }, { watch: ["new", "old"] }]);
    last().end();
    vi.advanceTimersByTime(1000);
    last().begin();
    expect(last().said).toEqual([{ watch: ["new", "old"] }]);
    worlds.want("panel", null);
    worlds.want("pill", null);
    expect(last().said.at(-1)).toEqual({ watch: [] });
  });

  it("shows a world that a person asks for at once, and once, whoever tells of it first", async () => {
    let accept: (answer: Response) => void = () => undefined;
    const fetched = vi.fn(() => new Promise<Response>((resolve) => (accept = resolve)));
    const asking = new Worlds(settings(fetched));
    last().begin();
    const ids = (): string[] => asking.worlds.map((one) => one.id);
    for (const listed of ["before the answer", "after the answer", "never"]) {
      const made = asking.start("local", { n: 2, name: "new" }, "", 2);
      expect(ids()).toEqual(["asked"]);
      if (listed === "before the answer") {
        last().tell({ type: "worlds", worlds: [world("other", { name: "other", state: "starting" })] });
        expect(ids()).toEqual(["other", "asked"]);
        last().tell({ type: "worlds", worlds: [world(listed, { name: "new", state: "starting" })] });
        expect(ids()).toEqual([listed]);
      }
      await vi.advanceTimersByTimeAsync(0);
      accept(new Response(JSON.stringify({ id: listed, name: "new" }), { status: 202 }));
      expect(await made).toBe(listed);
      expect(ids()).toEqual([listed]);
      if (listed === "after the answer") last().tell({ type: "worlds", worlds: [world(listed)] });
      expect(ids()).toEqual([listed]);
      last().tell({ type: "worlds", worlds: [] });
      expect(ids()).toEqual(listed === "never" ? [listed] : []);
      await vi.advanceTimersByTimeAsync(60_000);
      expect(ids()).toEqual([]);
    }
    const refused = asking.start("local", { n: 2, name: "new" }, "", 2);
    await vi.advanceTimersByTimeAsync(0);
    accept(new Response('{"message": "No."}', { status: 400 }));
    await expect(refused).rejects.toThrow("No.");
    expect(ids()).toEqual([]);
    asking.dispose();
  });

  it("selects the chosen world, else one with a running cell, else the newest", () => {
    last().begin();
    const run = {
      number: 1,
      cell: "",
      step: null,
      ranks: [0],
      outcome: "running" as const,
      started: 0,
      ended: null,
      elapsed: null,
      states: {},
    };
    const all = [world("a", { started: 1 }), world("b", { started: 3 }), world("c", { started: 2, run, runs: [run] })];
    last().tell({ type: "worlds", worlds: all });
    expect(worlds.selected?.id).toBe("c");
    worlds.select("a");
    expect(worlds.selected?.id).toBe("a");
    last().tell({ type: "worlds", worlds: [all[1]] });
    expect(worlds.selected?.id).toBe("b");
    last().tell({ type: "worlds", worlds: [] });
    expect(worlds.selected).toBe(null);
  });

  it("combines a world's and its run's data on a rank", () => {
    last().begin();
    last().tell({ type: "worlds", worlds: [world("w")] });
    last().tell({ type: "ranks", world: "w", ranks: [row(0, "idle"), row(1, "dead")] });
    const details = worlds.of("w");
    expect(details.ranks.map((rank) => [rank.state, rank.step])).toEqual([
      ["idle", null],
      ["dead", null],
    ]);
    const document = { ...status(3, ["ok", "running"]), metrics: [], seq: 0 };
    last().tell({ type: "run", world: "w", source: "x", document });
    expect(details.ranks.map((rank) => [rank.state, rank.step, rank.memory])).toEqual([
      ["idle", 5, 1000],
      ["dead", 5, 1000],
    ]);
    // Another process has the number since: nothing of the old one is shown for it.
    last().tell({ type: "ranks", world: "w", ranks: [row(0, "idle"), row(1, "idle", true)] });
    expect(details.ranks.map((rank) => [rank.state, rank.step, rank.memory])).toEqual([
      ["idle", 5, 1000],
      ["idle", null, null],
    ]);
    expect(details.nodes).toEqual(["host"]);
  });

  it("keeps the last measurements of a process in a run that ends before its ranks measure anything", () => {
    last().begin();
    last().tell({ type: "worlds", worlds: [world("w")] });
    last().tell({ type: "ranks", world: "w", ranks: [row(0, "idle"), row(1, "idle")] });
    const details = worlds.of("w");
    const measured = (): unknown[] => details.ranks.map((rank) => [rank.memory, rank.old]);
    const run = { ...status(3, ["ok", "ok"]), metrics: [], seq: 0 };
    last().tell({ type: "run", world: "w", source: "x", document: run });
    expect(measured()).toEqual([
      [1000, false],
      [1000, false],
    ]);
    const ranks = [0, 1].map((rank) => [rank, 0, "ok", 5]);
    const brief = { ...run, run: 4, ranks };
    last().tell({ type: "run", world: "w", source: "x", document: brief });
    expect(measured()).toEqual([
      [1000, true],
      [1000, true],
    ]);
  });

  it("shows all runs that go on, and forgets those that have ended", () => {
    last().begin();
    const summary = (number: number, rank: number): RunSummary => ({
      number,
      cell: "",
      step: null,
      ranks: [rank],
      outcome: "running",
      started: 0,
      ended: null,
      elapsed: null,
      states: {},
    });
    const one = summary(3, 0);
    const two = summary(4, 1);
    last().tell({ type: "worlds", worlds: [world("w", { run: two, runs: [one, two] })] });
    last().tell({ type: "ranks", world: "w", ranks: [row(0, "running"), row(1, "running")] });
    const details = worlds.of("w");
    const begin = (run: number, rank: number, step: number): void => {
      const ranks = [[rank, 0, "running", step, 1000, 50]];
      const document = { ...status(run, []), ranks, metrics: [], seq: 0 };
      last().tell({ type: "run", world: "w", source: "x", document });
    };
    begin(3, 0, 7);
    begin(4, 1, 9);
    expect(details.runs.map((run) => run.run)).toEqual([4, 3]);
    expect(details.ranks.map((rank) => rank.step)).toEqual([7, 9]);
    expect([details.runOf(0)?.run, details.runOf(1)?.run]).toEqual([3, 4]);
    last().tell({ type: "worlds", worlds: [world("w", { run: two, runs: [two] })] });
    expect(details.runs.map((run) => run.run)).toEqual([4]);
    last().tell({ type: "worlds", worlds: [world("w", { run: two, runs: [] })] });
    expect(details.runs.map((run) => run.run)).toEqual([4]);
  });

  it("takes the points of the known run only", () => {
    last().begin();
    const document = { ...status(3, ["running"]), metrics: [], seq: 1 };
    const news = { type: "news", world: "w", names: ["loss"], series: [[0, 0, 2, 10, 5]], steps: "" };
    last().tell({ type: "run", world: "w", source: "x", document });
    const values = base64([1, 0.5]);
    last().tell({ ...news, seq: 0, values, status: status(3, ["running"]) });
    last().tell({ ...news, seq: 1, values, status: status(3, ["running"]) });
    last().tell({ ...news, seq: 2, values, status: status(4, ["running"]) });
    const column = worlds.of("w").runs[0]!.metrics.get("loss")!.columns.get(0)!;
    expect([column.length, ...column.steps.subarray(0, 2), ...column.values.subarray(0, 2)]).toEqual([
      2, 10, 15, 1, 0.5,
    ]);
  });

  it("announces each item once, and forgets worlds that are gone", () => {
    const arrived: string[] = [];
    worlds.arrived.connect((_, one) => {
      arrived.push(one.id);
    });
    last().begin();
    last().tell({ type: "attention", items: [item("a")] });
    last().tell({ type: "attention", items: [item("b"), item("a")] });
    last().tell({ type: "attention", items: [item("b")] });
    expect(arrived).toEqual(["a", "b"]);
    const details = worlds.of("w");
    last().tell({ type: "worlds", worlds: [] });
    expect(worlds.of("w")).not.toBe(details);
  });

  it("survives a malformed message", () => {
    const warned = vi.spyOn(console, "warn").mockImplementation(() => undefined);
    last().begin();
    last().onmessage?.({ data: "{" });
    last().tell({ type: "worlds", worlds: [world("w")] });
    expect(worlds.worlds.length).toBe(1);
    expect(warned).toHaveBeenCalledOnce();
    warned.mockRestore();
  });
});

describe("a request", () => {
  const answer = (code: number, text: string): typeof globalThis.fetch =>
    vi.fn(() => Promise.resolve(new Response(text, { status: code, statusText: "Status" })));

  it("encodes any characters in an id", async () => {
    const fetch = answer(200, "{}");
    await request(settings(fetch), "DELETE", ["worlds", "a/b ?#%ä"]);
    const sent = vi.mocked(fetch).mock.calls[0]![0] as Request;
    // JupyterLab adds the time, so that no response comes from a cache.
    expect(sent.url.split("?")[0]).toBe("http://server.test/base/dtrain/worlds/a%2Fb%20%3F%23%25%C3%A4");
  });

  it.each([
    [400, '{"message": "No."}', "No."],
    [404, "<html>", "The server has no jupyter_dtrain extension. Is it installed where JupyterLab runs?"],
    [404, '{"message": "Gone."}', "Gone."],
    [500, "oops", "The server responded with 500 Status."],
    [200, "oops", "Could not read the server's response."],
  ])("fails with a message: %i %s", async (code, text, words) => {
    await expect(request(settings(answer(code, text)), "GET", ["worlds"])).rejects.toThrow(words);
  });

  it("reports a server that is gone, and one that does not respond", async () => {
    const refused = vi.fn(() => Promise.reject(new TypeError("refused")));
    await expect(request(settings(refused), "GET", ["worlds"])).rejects.toThrow("Cannot reach the server");
    vi.useFakeTimers();
    const silent = vi.fn(
      (input: Request | string | URL) =>
        new Promise<Response>((_, reject) => {
          (input as Request).signal.addEventListener("abort", () => {
            reject(new Error("aborted"));
          });
        }),
    );
    const asked = expect(request(settings(silent), "GET", ["worlds"])).rejects.toThrow("did not respond in time");
    await vi.advanceTimersByTimeAsync(20_000);
    await asked;
    vi.useRealTimers();
  });
});

describe("a profile", () => {
  it("is asked for until it is there, and each of its words is told once", async () => {
    vi.useFakeTimers();
    const told = (words: string, profile: unknown): string => JSON.stringify({ words, profile });
    const answers = [
      '{"number": 2}',
      ...["", "a", "a", "b"].map((words) => told(words, null)),
      told("", { path: "p" }),
    ];
    const sent: string[] = [];
    const fetch = async (input: Request | string | URL): Promise<Response> => {
      const asked = input as Request;
      sent.push(`${asked.method} ${new URL(asked.url).pathname} ${asked.method === "POST" ? await asked.text() : ""}`);
      return new Response(answers.shift());
    };
    const worlds = new Worlds(settings(fetch));
    const words: string[] = [];
    const found = worlds.profile("w", [0, 1], "my work", (one) => words.push(one));
    await vi.advanceTimersByTimeAsync(5000);
    expect(await found).toEqual({ path: "p" });
    expect(words).toEqual(["a", "b"]);
    expect(sent[0]).toBe('POST /base/dtrain/worlds/w/profile {"ranks":[0,1],"folder":"my work"}');
    expect(new Set(sent.slice(1))).toEqual(new Set(["GET /base/dtrain/worlds/w/profiles/2 "]));
    expect(worlds.addressOf("my work/p.json.gz")).toBe("http://server.test/base/files/my%20work/p.json.gz");
    expect(worlds.addressOf("")).toBe("");
    worlds.dispose();
    vi.useRealTimers();
  });

  it("outlives questions without an answer, but not many in a row, and no refusal", async () => {
    vi.useFakeTimers();
    const lost = (): Promise<Response> => Promise.reject(new Error("network"));
    const say = (content: unknown, status = 200) => {
      return (): Promise<Response> => Promise.resolve(new Response(JSON.stringify(content), { status }));
    };
    const going = say({ words: "a", profile: null });
    const four = [lost, lost, lost, lost];
    const ask = async (...answers: (() => Promise<Response>)[]): Promise<[unknown, number]> => {
      const fetch = vi.fn(() => (answers.shift() ?? lost)());
      const worlds = new Worlds(settings(fetch));
      const found = worlds.profile("w", [0], "", () => undefined).catch((error: unknown) => error);
      await vi.advanceTimersByTimeAsync(10_000);
      worlds.dispose();
      return [await found, fetch.mock.calls.length];
    };
    const begun = say({ number: 2 });
    expect(await ask(begun, ...four, going, ...four, say({ words: "", profile: "found" }))).toEqual(["found", 11]);
    const [silence, asked] = await ask(begun, going);
    expect([(silence as Error).message.slice(0, 23), asked]).toEqual(["Cannot reach the server", 7]);
    for (const status of [404, 409]) {
      const [refusal, until] = await ask(begun, lost, say({ message: "There is no profile." }, status));
      expect([(refusal as Error).message, until]).toEqual(["There is no profile.", 3]);
    }
    vi.useRealTimers();
  });
});

describe("what a person types or chooses", () => {
  it("parses variables", () => {
    expect(assignments(` A=1  B=x=y C D="two words"e =2 F='`)).toEqual({
      values: { A: "1", B: "x=y", D: "two wordse", F: "'" },
      wrong: ["C", "=2"],
    });
  });
});
