/** The page's model of all worlds: the stream keeps it current; the panel, the pills and the status bar read it. */

import { URLExt } from "@jupyterlab/coreutils";
import type { ServerConnection } from "@jupyterlab/services";
import { Signal, type ISignal } from "@lumino/signaling";
import type { Rank, RunModel } from "../model";
import { Receiver } from "../receiver";
import type { LoopAct, Steered } from "../steering";
import { NotFound, request, RequestError, Stream } from "./connection";
import type {
  CellOutputs,
  HeldVariables,
  Item,
  Launcher,
  Message,
  PanelProfile,
  ProfileProgress,
  RankRow,
  RunSummary,
  World,
} from "./messages";

/** A kind of change; "asked" is a world that the page has just asked for, which must be shown at once. */
type Change = "worlds" | "asked" | "items" | "details";

type Measured = Pick<Rank, "memory" | "hostMemory" | "cpu" | "workers" | "workersMemory" | "gpu">;

/** The details of one watched world: its ranks, the runs that go on, and the newest run. */
export class Details {
  rows: RankRow[] = [];
  private receivers = new Map<number, Receiver>();
  /** The last measurements of each process: a short run may end before its ranks measure anything. */
  private measured = new Map<number, Measured>();

  /** The runs that go on and the newest, which may have ended; the newest first. */
  get runs(): RunModel[] {
    return [...this.receivers.keys()]
      .sort((one, other) => other - one)
      .map((number) => this.receivers.get(number)!.model);
  }

  /** The run of this number; null if it has ended and is not the newest, or has not come yet. */
  run(number: number): RunModel | null {
    return this.receivers.get(number)?.model ?? null;
  }

  /** The newest run that `rank` takes part in; null if there is none. */
  runOf(rank: number): RunModel | null {
    return this.runs.find((run) => run.ranks.some((one) => one.rank === rank)) ?? null;
  }

  /** Forget the runs that have ended and are not the newest. */
  keep(world: World): void {
    const newest = world.run?.number ?? 0;
    for (const number of [...this.receivers.keys()]) {
      if (number < newest && !world.runs.some((run) => run.number === number)) this.receivers.delete(number);
    }
  }

  take(message: Message): void {
    if (message.type === "ranks") {
      this.rows = message.ranks;
      const pids = new Set(message.ranks.map((row) => row[5]));
      for (const pid of this.measured.keys()) if (!pids.has(pid)) this.measured.delete(pid);
    } else if (message.type === "run") {
      const receiver = this.receivers.get(message.document.run) ?? new Receiver();
      this.receivers.set(message.document.run, receiver);
      receiver.restart(message.document);
    } else if (message.type === "news") {
      this.receivers
        .get(message.status.run)
        ?.receive(message, [viewOf(message.values ?? ""), viewOf(message.steps ?? "")]);
    }
  }

  /** All ranks of the world, each with the data of the newest run that it takes part in. */
  get ranks(): (Rank & { host: string; device: string; pid: number; role: string; old: boolean })[] {
    const running = new Map(this.runs.reverse().flatMap((run) => run.ranks.map((rank) => [rank.rank, rank])));
    return this.rows.map(([rank, node, host, , device, pid, state, words, waits, role, fresh]) => {
      const own = fresh ? undefined : running.get(rank);
      const now = own !== undefined && (own.memory !== null || own.gpu !== null);
      if (now) this.measured.set(pid, own);
      const last = fresh ? undefined : (this.measured.get(pid) ?? own);
      return {
        rank,
        node,
        host,
        device,
        pid,
        role,
        state,
        step: own?.step ?? null,
        memory: last?.memory ?? null,
        hostMemory: last?.hostMemory ?? null,
        cpu: last?.cpu ?? null,
        workers: last?.workers ?? 0,
        workersMemory: last?.workersMemory ?? 0,
        gpu: last?.gpu ?? null,
        old: !now,
        pace: own?.pace ?? null,
        slower: own?.slower ?? null,
        words: words || waits || (state === "running" ? "" : (own?.words ?? "")),
      };
    });
  }

  get nodes(): string[] {
    const found: string[] = [];
    for (const row of this.rows) found[row[1]] = row[2];
    return Array.from(found, (host: string | undefined) => host ?? "");
  }
}

function viewOf(text: string): DataView {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < bytes.length; index += 1) bytes[index] = binary.charCodeAt(index);
  return new DataView(bytes.buffer);
}

/** Milliseconds between two questions how far a profile is. */
const PROFILED = 400;

/** The questions in a row that may have no answer, as on a bad network, before a profile is given up. */
const UNANSWERED = 5;

/** Milliseconds for which the page shows a world that it has started and that the server does not list yet. */
const UNLISTED = 15_000;

/** Seconds after which one more of the same findings is announced again. */
const AGAIN = 60;

export class Worlds {
  /** All worlds, those included that the page has just asked for. */
  worlds: World[] = [];
  items: Item[] = [];
  /** Whether the stream to the server is open. */
  connected = false;
  /** Whether the stream was ever open; without the server extension it never is. */
  everConnected = false;
  private details = new Map<string, Details>();
  private listed: World[] = [];
  private asked: World[] = [];
  private selection: string | null = null;
  private wanted = new Map<unknown, string>();
  private stream: Stream;
  private changedSignal = new Signal<this, Change>(this);
  private arrivedSignal = new Signal<this, Item>(this);
  private answeringSignal = new Signal<this, [kernel: string, ranks: number[], sent: Promise<unknown>]>(this);
  private endedSignal = new Signal<this, [World, RunSummary]>(this);

  constructor(readonly settings: ServerConnection.ISettings) {
    this.stream = new Stream(
      settings,
      (message) => {
        this.receive(message);
      },
      (open) => {
        this.connected = open;
        this.everConnected ||= open;
        this.changedSignal.emit("worlds");
      },
    );
  }

  /** Emitted after every change. */
  get changed(): ISignal<this, Change> {
    return this.changedSignal;
  }

  /** Emitted when this page answers prompts. */
  get answering(): ISignal<this, [kernel: string, ranks: number[], sent: Promise<unknown>]> {
    return this.answeringSignal;
  }

  /** Emitted for each run that ends while the page looks. */
  get ended(): ISignal<this, [World, RunSummary]> {
    return this.endedSignal;
  }

  /** Emitted for each new item, and for one that has come again after a while. */
  get arrived(): ISignal<this, Item> {
    return this.arrivedSignal;
  }

  /** The world whose ranks and run are shown: the chosen one, else one with a running cell, else the newest. */
  get selected(): World | null {
    const works = (world: World): boolean => world.runs.length > 0;
    const newest = [...this.worlds].sort((one, other) => other.started - one.started);
    return this.worlds.find((world) => world.id === this.selection) ?? newest.find(works) ?? newest[0] ?? null;
  }

  select(id: string): void {
    this.selection = id;
    this.rewatch();
    this.changedSignal.emit("worlds");
  }

  find(id: string): World | undefined {
    return this.worlds.find((world) => world.id === id);
  }

  /** The step of a run: the list of worlds may be older than the news of a run in a world that is watched. */
  stepOf(id: string, run: RunSummary): number | null {
    return this.details.get(id)?.run(run.number)?.step ?? run.step;
  }

  of(id: string): Details {
    let found = this.details.get(id);
    if (found === undefined) {
      found = new Details();
      this.details.set(id, found);
    }
    return found;
  }

  /** Subscribe `who` to a world's details; "" means the selected world, null unsubscribes. */
  want(who: unknown, id: string | null): void {
    if (id === null) this.wanted.delete(who);
    else this.wanted.set(who, id);
    this.rewatch();
  }

  dismiss(id: string | null): void {
    this.stream.dismiss(id);
  }

  reconnect(): void {
    this.stream.hurry();
  }

  dispose(): void {
    this.stream.close();
    Signal.clearData(this);
  }

  // Requests to the server. Each throws an Error that says what to do.

  /** Start a world, which is among the worlds at once; returns its id when the server has accepted it. */
  async start(launcher: string, options: Record<string, unknown>, cwd: string, ranks: number): Promise<string> {
    const { n, name } = options;
    const shown = askedFor(typeof name === "string" ? name : "", typeof n === "number" ? n : ranks, cwd);
    const hide = (): void => {
      this.asked = this.asked.filter((world) => world !== shown);
      this.join("worlds");
    };
    this.asked.push(shown);
    this.selection = shown.id;
    this.join("asked");
    let made: { id: string; name: string };
    try {
      made = await request(this.settings, "POST", ["worlds"], { launcher, options, cwd });
    } catch (error) {
      hide();
      throw error;
    }
    Object.assign(shown, made);
    setTimeout(hide, UNLISTED);
    this.join("worlds"); // the server may have listed it before it answered
    this.select(made.id);
    return made.id;
  }

  async stop(id: string): Promise<void> {
    await request(this.settings, "DELETE", ["worlds", id]);
  }

  /** `place`: where the button is, and in whose notebook: an observer's does not stop the driver's cell. */
  async act(
    id: string,
    action: "interrupt" | "heal" | "restart" | "kill",
    ranks?: number[],
    place?: { place: "cell"; kernel: string },
  ): Promise<void> {
    await request(this.settings, "POST", ["worlds", id, action], { ranks, ...place });
  }

  /**
   * Answer prompts of a run. `prompts`: the number of the prompt by rank; `kernel`: that of the driver's notebook, which
   * is open in this page.
   */
  async answer(
    id: string,
    run: number,
    prompts: Record<number, number>,
    text: string | null,
    kernel: string,
  ): Promise<void> {
    const sent = request(this.settings, "POST", ["worlds", id, "answer"], { run, prompts, text, kernel });
    this.answeringSignal.emit([kernel, Object.keys(prompts).map(Number), sent]);
    await sent;
  }

  /** Have an act done on the loop of a run; `kernel` as for an answer. It lasts until all ranks have done it. */
  async steer(id: string, run: number, act: LoopAct, kernel: string): Promise<Steered> {
    return request(this.settings, "POST", ["worlds", id, "steer"], { run, act, kernel });
  }

  async stacks(id: string, ranks?: number[]): Promise<string> {
    const body = ranks === undefined ? {} : { ranks };
    return (await request<{ text: string }>(this.settings, "POST", ["worlds", id, "stacks"], body)).text;
  }

  /**
   * Have the steps of `ranks` recorded that come next, without stopping their loop. `folder`, below the server's root,
   * gets the trace; `tell` gets what is going on, as sentences.
   */
  async profile(
    id: string,
    ranks: readonly number[],
    folder: string,
    tell: (words: string) => void,
  ): Promise<PanelProfile> {
    const begun = await request<{ number: number }>(this.settings, "POST", ["worlds", id, "profile"], {
      ranks,
      folder,
    });
    let told = "";
    let unanswered = 0;
    const path = ["worlds", id, "profiles", String(begun.number)];
    for (;;) {
      try {
        const { words, profile } = await request<ProfileProgress>(this.settings, "GET", path);
        if (profile !== null) return profile;
        unanswered = 0;
        if (words !== "" && words !== told) tell(words);
        told = words;
      } catch (error) {
        unanswered += 1;
        if (error instanceof NotFound || error instanceof RequestError || unanswered === UNANSWERED) throw error;
      }
      await new Promise((done) => setTimeout(done, PROFILED));
    }
  }

  /** Where a file below the server's root can be downloaded; empty for none. */
  addressOf(file: string): string {
    return file === "" ? "" : URLExt.join(this.settings.baseUrl, "files", URLExt.encodeParts(file));
  }

  /** The contents of the user's variables on each rank. Ranks read all values for it, so ask only when a person wants it. */
  async variables(id: string): Promise<HeldVariables> {
    return request(this.settings, "POST", ["worlds", id, "variables"], {});
  }

  async output(id: string, run: number, rank: number): Promise<{ text: string; cut: boolean }> {
    return request(this.settings, "GET", ["worlds", id, "runs", String(run), "ranks", String(rank), "output"]);
  }

  /** The output of a run's cell after that which the page already has. Throws NotFound if it is no longer kept. */
  async cell(id: string, run: number, replay: string, since: number): Promise<CellOutputs> {
    const path = ["worlds", id, "runs", String(run), "cell"];
    return request(this.settings, "GET", path, undefined, { replay, since: String(since) });
  }

  async launchers(): Promise<Launcher[]> {
    return (await request<{ launchers: Launcher[] }>(this.settings, "GET", ["launchers"])).launchers;
  }

  // Messages of the stream.

  private rewatch(): void {
    const selected = this.wanted.size > 0 ? this.selected : null;
    const ids = new Set([...this.wanted.values(), ...(selected === null ? [] : [selected.id])]);
    this.stream.watch([...ids].filter((id) => id !== "" && id !== ASKED).sort());
  }

  /** Join the worlds that the server lists and those that the page has just asked for. */
  private join(change: Change): void {
    // Before it answers, a busy server may list the world that it was asked for.
    const listed = ({ id, name }: World): boolean =>
      this.listed.some(
        (one) => one.id === id || (id === ASKED && one.state === "starting" && (!name || one.name === name)),
      );
    this.asked = this.asked.filter((one) => !listed(one));
    this.worlds = [...this.listed, ...this.asked];
    this.rewatch();
    this.changedSignal.emit(change);
  }

  private receive(message: Message): void {
    switch (message.type) {
      case "worlds": {
        const before = this.listed;
        this.listed = message.worlds;
        const there = new Set(message.worlds.map((world) => world.id));
        for (const id of this.details.keys()) if (!there.has(id)) this.details.delete(id);
        for (const world of message.worlds) this.details.get(world.id)?.keep(world);
        this.join("worlds");
        for (const ended of runsThatEnded(before, message.worlds)) this.endedSignal.emit(ended);
        break;
      }
      case "attention": {
        const known = new Map(this.items.map((item) => [item.id, item.time]));
        this.items = message.items;
        for (const item of message.items)
          if (item.time > (known.get(item.id) ?? -Infinity) + AGAIN) this.arrivedSignal.emit(item);
        this.changedSignal.emit("items");
        break;
      }
      default:
        this.of(message.world).take(message);
        this.changedSignal.emit("details");
    }
  }
}

/** The id of a world that the server has not accepted yet. */
export const ASKED = "asked";

/** A world as the page shows it until the server lists it. */
function askedFor(name: string, size: number, cwd: string): World {
  return {
    id: ASKED,
    name,
    cwd,
    state: "starting",
    words: "",
    progress: "",
    failure: null,
    size,
    ready: 0,
    nodes: 0,
    dead: 0,
    frameworks: [],
    started: Date.now() / 1000,
    lease_end: null,
    left: "",
    driver: null,
    run: null,
    runs: [],
  };
}

/** The runs that went on before and have ended now, as far as the lists tell how. */
function runsThatEnded(before: World[], now: World[]): [World, RunSummary][] {
  return now.flatMap((world): [World, RunSummary][] => {
    const { run } = world;
    const went = before.find((one) => one.id === world.id)?.runs.some((one) => one.number === run?.number);
    return went === true && run !== null && run.ended !== null ? [[world, run]] : [];
  });
}
