import { Signal } from "@lumino/signaling";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { followCells } from "../src/lab/cellRuns";
import { NotFound } from "../src/lab/connection";
import type { CellOutputs } from "../src/lab/messages";
import { liveRun, offer } from "../src/live";
import { RunModel } from "../src/model";
import { MIME } from "../src/runDocument";

const WIDGET = "application/vnd.jupyter.widget-view+json";
const mark = { panel: "p", world: "w", run: 3 };
const document = (outcome: string) => ({
  version: 1,
  run: 3,
  size: 1,
  outcome,
  ranks: [],
  metrics: [],
  elapsed: 1,
  nodes: [],
  words: {},
  bars: [],
});
const panel = (outcome: string, more = {}) => ({
  output_type: "display_data",
  data: { [MIME]: document(outcome), "text/plain": "Run 3", ...more },
  metadata: { dtrain: mark },
});
const line = (text: string) => ({ output_type: "stream", name: "stdout", text });

type Output = Record<string, unknown>;

/** A cell's outputs, which join text with the text before it, as JupyterLab's do. */
class Outputs {
  private list: Output[] = [];
  changed = new Signal<this, { type: string; newIndex: number }>(this);

  get length(): number {
    return this.list.length;
  }

  get(index: number): Output {
    return { data: {}, metadata: {}, ...this.list[index] };
  }

  set(index: number, value: Output): void {
    this.list[index] = value;
    this.changed.emit({ type: "set", newIndex: index });
  }

  add(value: Output): number {
    const last = this.list.at(-1);
    if (last?.output_type === "stream" && value.output_type === "stream") {
      last.text = `${last.text as string}${value.text as string}`;
    } else {
      this.list.push({ ...value });
      this.changed.emit({ type: "add", newIndex: this.list.length - 1 });
    }
    return this.list.length;
  }

  clear(): void {
    this.list = [];
    this.changed.emit({ type: "clear", newIndex: 0 });
  }

  toJSON(): Output[] {
    return this.list;
  }
}

/** The server's half: what the stream has told, and what it answers about a cell. */
class Server {
  connected = true;
  worlds: unknown[] = [
    { id: "w", driver: { kernel: "k", there: true }, runs: [{ number: 3, cell: "cell" }], run: { number: 3 } },
  ];
  changed = new Signal<this, string>(this);
  answering = new Signal<this, [string, number[], Promise<unknown>]>(this);
  model: RunModel | null = null;
  wanted = new Map<unknown, string>();
  answers: (Partial<CellOutputs> | Error)[] = [];
  asked: [string, number][] = [];
  find = (id: string) => (this.worlds as { id: string }[]).find((world) => world.id === id);
  of = () => ({ run: () => this.model });
  want = (who: unknown, id: string | null) => {
    if (id === null) this.wanted.delete(who);
    else this.wanted.set(who, id);
  };
  folders: string[] = [];
  profile = (_world: string, _ranks: number[], folder: string) => {
    this.folders.push(folder);
    return Promise.resolve({ file: "" });
  };
  addressOf = (file: string) => file;
  cell = (_world: string, _run: number, replay: string, since: number) => {
    this.asked.push([replay, since]);
    const next = this.answers.shift() ?? { outputs: [] };
    if (next instanceof Error) return Promise.reject(next);
    return Promise.resolve({ replay: "r", version: 1, cell: "cell", executed: 7, more: false, over: false, ...next });
  };

  tell(what: string): void {
    this.changed.emit(what);
  }
}

/** A notebook of one cell, whose kernel is busy. */
class Page {
  cell = {
    id: "cell",
    type: "code",
    outputs: new Outputs(),
    isDisposed: false,
    executionCount: null,
    executionState: "idle",
  };
  scheduled = new Signal<object, unknown>({});
  iopubMessage = new Signal<object, unknown>({});
  saveState = new Signal<object, string>({});
  disposed = new Signal<object, undefined>({});
  status = new Signal<object, string>({});
  path = "old/a.ipynb";
  widgets: unknown[] = [];

  constructor(server: Server) {
    const path = () => this.path;
    const notebook = {
      isDisposed: false,
      disposed: this.disposed,
      content: { widgets: this.widgets },
      context: {
        ready: Promise.resolve(),
        saveState: this.saveState,
        get localPath() {
          return path();
        },
        model: { collaborative: false, cells: Object.assign([this.cell], { changed: new Signal({}) }) },
      },
      sessionContext: {
        ready: Promise.resolve(),
        iopubMessage: this.iopubMessage,
        kernelChanged: new Signal({}),
        statusChanged: this.status,
        session: { kernel: { id: "k" } },
      },
    };
    const tracker = {
      forEach: (take: (one: unknown) => void) => {
        take(notebook);
      },
      widgetAdded: new Signal({}),
    };
    followCells(tracker as never, server as never, this.scheduled as never);
  }

  /** The cell is run in this page. */
  run(): void {
    this.scheduled.emit({ cell: { model: this.cell } });
  }

  get outputs(): Output[] {
    return this.cell.outputs.toJSON();
  }

  data(index: number): Output {
    return this.outputs[index]!.data as Output;
  }
}

describe("the cells of a notebook", () => {
  let server: Server;
  const settle = () => vi.advanceTimersByTimeAsync(600);

  beforeEach(() => {
    vi.useFakeTimers();
    server = new Server();
  });

  afterEach(() => {
    offer(mark, null);
    vi.useRealTimers();
  });

  it("draw a run that this page has started from the stream, and keep no widget", async () => {
    const { worlds } = server;
    server.worlds = [{ id: "w", driver: null, runs: [] }];
    const page = new Page(server);
    await settle();
    page.run();
    server.worlds = worlds;
    page.cell.outputs.add(panel("running", { [WIDGET]: { model_id: "c" } }));
    expect(Object.keys(page.data(0))).toEqual([MIME, "text/plain"]);
    expect([...server.wanted.values()]).toEqual(["w"]);
    // Until the stream has the run, the panel lives on what the kernel broadcasts.
    expect(liveRun(mark)?.model.outcome).toBe("running");
    server.model = new RunModel();
    server.tell("details");
    expect(liveRun(mark)?.model).toBe(server.model);
    // The stream stands still: after a second, the kernel's news are shown, from its next document on.
    const say = (data: unknown, buffers: unknown[] = []): void => {
      page.iopubMessage.emit({ header: { msg_type: "comm_msg" }, content: { comm_id: "c", data }, buffers });
    };
    const bytes = (content: unknown) => [new TextEncoder().encode(JSON.stringify(content))];
    const whole = { method: "update", state: {}, buffer_paths: [["document"]] };
    const news = { ...document("running"), reach: [5] };
    say({ method: "custom", content: { type: "news", seq: 0, status: news } });
    expect(liveRun(mark)?.model).toBe(server.model);
    await vi.advanceTimersByTimeAsync(1100);
    say({ method: "custom", content: { type: "news", seq: 0, status: news } });
    say(whole, bytes({ ...news, seq: 0 }));
    expect(liveRun(mark)?.model.reach).toEqual([5]);
    server.model.reach = [6];
    server.tell("details");
    expect(liveRun(mark)?.model).toBe(server.model);
    // The kernel's broadcasts bring the document up to date when the notebook is saved.
    say(whole, bytes({ ...document("running"), elapsed: 9 }));
    page.saveState.emit("started");
    expect(page.data(0)[MIME]).toHaveProperty("elapsed", 9);
    page.cell.outputs.set(0, panel("ok"));
    expect(liveRun(mark)).toBeNull();
    expect(server.wanted.size).toBe(0);
    expect(server.asked).toEqual([]);
  });

  it("have the trace of a profile put beside the notebook, wherever that is meanwhile", async () => {
    server.model = new RunModel();
    const page = new Page(server);
    await settle();
    page.cell.outputs.add(panel("running"));
    const { questions } = liveRun(mark)!;
    await questions!.ask("profile");
    page.path = "new/a.ipynb";
    await questions!.ask("profile");
    expect(server.folders).toEqual(["old", "new"]);
  });

  it("keep the widget where the server does not follow the run", async () => {
    const page = new Page(server);
    await settle();
    page.run();
    page.cell.outputs.add(panel("running", { [WIDGET]: { model_id: "c" } }));
    await vi.advanceTimersByTimeAsync(5000);
    server.tell("details");
    expect(page.data(0)).toHaveProperty([WIDGET]);
    server.tell("details");
    expect(page.data(0)).toHaveProperty([WIDGET]);
    server.connected = false;
    page.cell.outputs.set(0, {
      ...panel("running", { [WIDGET]: { model_id: "d" } }),
      metadata: { dtrain: { panel: "q" } },
    });
    expect(page.data(0)).toHaveProperty([WIDGET]);
  });

  it("live on the kernel's broadcasts where there is no server extension, and get the saved run in the end", async () => {
    server.connected = false;
    const page = new Page(server);
    page.cell.outputs.add(panel("running", { [WIDGET]: { model_id: "c" } }));
    await settle();
    const whole = { method: "update", state: {}, buffer_paths: [["document"]] };
    const buffers = [new TextEncoder().encode(JSON.stringify({ ...document("running"), elapsed: 9, seq: 4 }))];
    page.iopubMessage.emit({ header: { msg_type: "comm_msg" }, content: { comm_id: "other", data: whole }, buffers });
    page.iopubMessage.emit({ header: { msg_type: "status" }, content: {} });
    page.iopubMessage.emit({ header: { msg_type: "comm_msg" }, content: { comm_id: "c", data: whole }, buffers });
    expect(liveRun(mark)?.questions).toBeNull();
    expect(page.data(0)).not.toHaveProperty([WIDGET]);
    const { data } = panel("ok");
    const content = { data, metadata: {}, transient: { display_id: "p" } };
    page.iopubMessage.emit({ header: { msg_type: "update_display_data" }, content });
    expect(page.data(0)[MIME]).toHaveProperty("outcome", "ok");
    expect(liveRun(mark)).toBeNull();
    expect(server.asked).toEqual([]);
  });

  it("get from the server what a page has missed, and then what is new", async () => {
    server.answers = [
      {
        outputs: [
          [0, panel("running")],
          [1, line("one\n")],
          [2, line("two\n")],
          [3, panel("figure")],
        ],
        version: 4,
        more: true,
      },
      {
        outputs: [
          [3, panel("other")],
          [4, line("three\n")],
        ],
        version: 6,
      },
      { outputs: [[0, panel("ok")]], version: 7, over: true },
    ];
    const page = new Page(server);
    page.cell.outputs.add(line("one\n"));
    page.cell.outputs.add(panel("running", { [WIDGET]: { model_id: "c" } }));
    await vi.advanceTimersByTimeAsync(100);
    expect(server.asked.slice(0, 2)).toEqual([
      ["", 0],
      ["r", 4],
    ]);
    expect(page.cell.executionState).toBe("running");
    expect(page.outputs.map((output) => output.text ?? (output.data as never)[MIME])).toEqual([
      document("running"),
      "one\ntwo\n",
      document("other"),
      "three\n",
    ]);
    await settle();
    expect(page.data(0)[MIME]).toHaveProperty("outcome", "ok");
    expect([page.cell.executionState, page.cell.executionCount]).toEqual(["idle", 7]);
    await settle();
    expect(server.asked).toHaveLength(3);
  });

  it("begin anew with another replay, ask again after a failure, and leave what is no longer kept", async () => {
    server.answers = [
      { outputs: [[0, line("one\n")]] },
      new Error("down"),
      { replay: "s", outputs: [[0, line("both\n")]] },
      new NotFound("gone"),
    ];
    const page = new Page(server);
    await settle();
    await vi.advanceTimersByTimeAsync(2500);
    expect(page.outputs.map((output) => output.text)).toEqual(["both\n"]);
    await settle();
    await settle();
    expect(server.asked).toHaveLength(4);
  });

  it("stop when the page runs the cell", async () => {
    server.answers = [{ outputs: [[0, line("one\n")]] }];
    const page = new Page(server);
    await settle();
    const asked = server.asked.length;
    expect(asked).toBeGreaterThan(0);
    page.run();
    await settle();
    server.tell("worlds");
    await settle();
    expect(server.asked).toHaveLength(asked);
    // A kernel that has restarted has forgotten the cell, and its ranks go on.
    page.status.emit("busy");
    page.status.emit("restarting");
    await settle();
    expect(server.asked.length).toBeGreaterThan(asked);
  });
});
