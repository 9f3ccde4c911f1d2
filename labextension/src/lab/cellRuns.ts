/**
 * The runs in the cells of notebooks, drawn from the server's stream.
 *
 * A cell that runs in this page has a panel from its kernel, a widget. Where the server follows the run, the panel is
 * drawn from the server's stream instead, as the sidebar is: they show the same numbers at the same moment, however
 * busy the kernel is. The notebook then keeps the run's document, and no widget that only this kernel knows.
 *
 * A cell that runs while this page did not start it (the page was reloaded) gets nothing from JupyterLab. Its output
 * comes from the server, which reads the ranks' spools, from the first line on and until the run has ended.
 *
 * Without the server extension, widgets stay. A reloaded page then restores panels from the kernel's broadcasts, which
 * reach every page: the news of a run, and what replaces its widget in the end.
 */

import type { INotebookTracker, NotebookActions, NotebookPanel } from "@jupyterlab/notebook";
import { PathExt } from "@jupyterlab/coreutils";
import type { KernelMessage } from "@jupyterlab/services";
import { covers, Freshest } from "../freshest";
import { markOf, offer, type Mark } from "../live";
import type { Answer, Question, Questions } from "../panel";
import { Receiver, type News } from "../receiver";
import { MIME, type RunDocument } from "../runDocument";
import { NotFound } from "./connection";
import { answererOf, steererOf } from "./prompts";
import { StaleBoxes, type Asked } from "./staleBoxes";
import type { Worlds } from "./worlds";

const WIDGET = "application/vnd.jupyter.widget-view+json";

/** Milliseconds in which the stream must have a run; after that its widget comes back. */
const PATIENCE = 4000;

/** Milliseconds between two questions for new output, and after one that failed. */
const PERIOD = 500;
const PAUSE = 2000;

/** JupyterLab's list of outputs; its own type would pull its package into the build. */
interface OutputList {
  readonly length: number;
  get(index: number): { data: Bundle; metadata: Bundle; toJSON(): Bundle };
  set(index: number, value: Bundle): void;
  add(value: Bundle): number;
  clear(): void;
  changed: {
    connect(slot: (sender: unknown, change: { type: string; newIndex: number }) => void): boolean;
  };
}

type Bundle = Record<string, unknown>;

/** The states of a kernel that has lost its cells. */
const GONE = ["restarting", "autorestarting", "dead"];

/** Emits the cells that this page runs. */
type Scheduled = typeof NotebookActions.executionScheduled;

/** The model of a code cell. */
interface CodeCell {
  id: string;
  outputs: OutputList;
  isDisposed: boolean;
  executionCount: number | null;
  executionState?: "idle" | "running";
}

/** A panel whose run goes on. */
interface Shown {
  mark: Mark;
  cell: CodeCell;
  /** The kernel's display, with its widget. */
  widget: Bundle | null;
  comm: string;
  /** The run by the kernel's broadcasts, while the stream lacks it; else only the place that they have come to. */
  kernel: Receiver | null;
  place: { outcome: string; reach: readonly number[] };
  freshest: Freshest;
  /** The newest document in the kernel's broadcasts. */
  document: DataView | null;
  since: number;
}

/** The content of the kernel's messages that are used here. */
interface Broadcast {
  comm_id?: string;
  data?: { method?: string; buffer_paths?: string[][]; content?: News & { type?: string } };
  transient?: { display_id?: string };
}

function viewOf(buffer: ArrayBuffer | ArrayBufferView): DataView {
  return buffer instanceof ArrayBuffer
    ? new DataView(buffer)
    : new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}

/** Sends requests to the server. */
class Asker implements Questions {
  readonly prompts;
  readonly steering;

  constructor(
    private worlds: Worlds,
    private mark: Mark,
    private ranks: number[],
    /** The id of the notebook's kernel now: a page that was loaded again knows it some time after it has the run. */
    private kernel: () => string,
    /** Where the notebook is now, below the server's root: a person may move it while its cell runs. */
    private notebook: () => string,
  ) {
    const drives = (driver: string): boolean => driver === kernel();
    this.prompts = answererOf(worlds, mark.world, drives);
    this.steering = steererOf(worlds, mark.world, drives);
  }

  async ask(question: Question, rank?: number, tell?: (words: string) => void): Promise<Answer> {
    const { world, run } = this.mark;
    switch (question) {
      case "interrupt":
        await this.worlds.act(world, "interrupt", undefined, { place: "cell", kernel: this.kernel() });
        return { text: "" };
      case "stacks":
        return { text: await this.worlds.stacks(world, this.ranks) };
      case "profile": {
        const profile = await this.worlds.profile(
          world,
          this.ranks,
          PathExt.dirname(this.notebook()),
          tell ?? (() => undefined),
        );
        return { text: "", profile, address: this.worlds.addressOf(profile.file) };
      }
      case "output": {
        const { text, cut } = await this.worlds.output(world, run, rank ?? 0);
        return { text, cut: cut ? 1 : 0 };
      }
    }
  }
}

/** Shows the output of one cell from the server. */
class Resumed {
  private replay = "";
  private version = 0;
  private places = new Map<number, number>();
  private timer = 0;
  private ended = false;

  constructor(
    private worlds: Worlds,
    readonly cell: CodeCell,
    readonly world: string,
    readonly run: number,
  ) {
    void this.ask();
  }

  get over(): boolean {
    return this.ended;
  }

  /** End it; the cell stays as it is. */
  stop(): void {
    clearTimeout(this.timer);
    this.ended = true;
  }

  private async ask(): Promise<void> {
    let pause = PERIOD;
    try {
      const answer = await this.worlds.cell(this.world, this.run, this.replay, this.version);
      if (this.ended) return;
      if (this.cell.isDisposed) {
        this.stop();
        return;
      }
      const { outputs } = this.cell;
      if (answer.replay !== this.replay) {
        this.replay = answer.replay;
        this.places.clear();
        outputs.clear();
      }
      this.version = answer.version;
      for (const [place, output] of answer.outputs) this.put(place, output);
      this.cell.executionState = answer.over ? "idle" : "running";
      if (answer.over) {
        this.cell.executionCount = answer.executed;
        this.stop();
        return;
      }
      if (answer.more) pause = 0;
    } catch (error) {
      if (error instanceof NotFound || this.cell.isDisposed) {
        this.stop();
        return;
      }
      pause = PAUSE;
    }
    if (!this.ended) this.timer = window.setTimeout(() => void this.ask(), pause);
  }

  /** Add an output, or replace what it was. */
  private put(place: number, output: Bundle): void {
    const { outputs } = this.cell;
    const index = this.places.get(place);
    if (index === undefined) {
      // JupyterLab joins text with the text before it, so only displays keep a place of their own.
      if (output.output_type === "display_data") this.places.set(place, outputs.length);
      outputs.add(output);
    } else if (index < outputs.length) {
      outputs.set(index, output);
    }
  }
}

/** The cells that this page has run, and those that it shows from the server; a notebook may have several views. */
const own = new WeakSet<CodeCell>();
const resumed = new WeakMap<CodeCell, Resumed>();

/** One open notebook. */
class NotebookRuns {
  private shown = new Map<string, Shown>();
  private watched = new WeakSet();
  private refused = new Set<string>();
  private boxes: StaleBoxes;

  constructor(
    private panel: NotebookPanel,
    private worlds: Worlds,
    private scheduled: Scheduled,
  ) {
    this.boxes = new StaleBoxes(panel, (cell) => this.asked(cell));
    void panel.context.ready.then(() => {
      // With real-time collaboration the outputs are shared: whoever ran the cell writes them for all.
      if (!panel.isDisposed && !panel.context.model.collaborative) this.begin();
    });
  }

  private begin(): void {
    const { panel, worlds, scheduled } = this;
    const { cells } = panel.context.model;
    const watchAll = (): void => {
      for (const cell of cells) if (cell.type === "code") this.watch(cell as unknown as CodeCell);
    };
    const look = (_: unknown, what: string): void => {
      if (what === "worlds") this.find();
      if (what !== "items") {
        this.follow();
        this.boxes.look();
      }
    };
    const runs = (_: unknown, { cell }: { cell: { model: unknown } }): void => {
      this.run(cell.model as CodeCell);
    };
    const hear = (_: unknown, message: KernelMessage.IMessage): void => {
      for (const one of [...this.shown.values()]) if (this.hear(one, message)) this.followOne(one);
    };
    const answers = (_: unknown, [kernel, ranks, sent]: [string, number[], Promise<unknown>]): void => {
      if (kernel === panel.sessionContext.session?.kernel?.id) this.boxes.answer(ranks, sent);
    };
    const saving = (_: unknown, state: string): void => {
      if (state === "started") this.keep();
    };
    watchAll();
    cells.changed.connect(watchAll);
    worlds.changed.connect(look);
    worlds.answering.connect(answers);
    scheduled.connect(runs);
    panel.sessionContext.iopubMessage.connect(hear);
    // Cells that a kernel has left behind go on in the ranks, and only the server tells how.
    panel.sessionContext.kernelChanged.connect((__, { oldValue }) => {
      if (oldValue === null) this.find();
      else this.disown();
    });
    panel.sessionContext.statusChanged.connect((__, status) => {
      if (GONE.includes(status)) this.disown();
      this.boxes.look();
    });
    panel.context.saveState.connect(saving);
    void panel.sessionContext.ready.then(() => {
      this.find();
    });
    panel.disposed.connect(() => {
      worlds.changed.disconnect(look);
      worlds.answering.disconnect(answers);
      scheduled.disconnect(runs);
      this.boxes.destroy();
      for (const one of [...this.shown.values()]) this.drop(one);
    });
  }

  /** Follow the panels that a cell has, and those that it gets. */
  private watch(cell: CodeCell): void {
    if (this.watched.has(cell)) return;
    this.watched.add(cell);
    const { outputs } = cell;
    for (let index = 0; index < outputs.length; index += 1) this.take(cell, index);
    outputs.changed.connect((_, change) => {
      if ((change.type === "add" || change.type === "set") && change.newIndex < outputs.length) {
        this.take(cell, change.newIndex);
      }
    });
  }

  /** Look at one output of a cell. */
  private take(cell: CodeCell, index: number): void {
    const { data, metadata } = cell.outputs.get(index);
    const mark = markOf(metadata);
    if (mark === null) return;
    const known = this.shown.get(mark.panel);
    const document = data[MIME] as RunDocument | undefined;
    if (document?.outcome !== "running") {
      if (known !== undefined) this.drop(known);
      return;
    }
    const view = data[WIDGET] as { model_id: string } | undefined;
    if (known === undefined) {
      if (this.refused.has(mark.panel)) return;
      const widget = view === undefined ? null : data;
      const since = performance.now();
      const kernel = new Receiver();
      try {
        if (widget !== null) kernel.begin(document);
      } catch {
        return; // its renderer says what is wrong with it
      }
      const place = { outcome: "running", reach: document.reach ?? [] };
      const rest = { comm: view?.model_id ?? "", kernel, place, freshest: new Freshest(), document: null, since };
      this.shown.set(mark.panel, { mark, cell, widget, ...rest });
    }
    this.follow();
  }

  /** Draw panels from the stream where it has their runs. */
  private follow(): void {
    for (const one of [...this.shown.values()]) this.followOne(one);
  }

  private followOne(one: Shown): void {
    const { worlds } = this;
    const { mark } = one;
    if (!worlds.connected || worlds.find(mark.world) === undefined) {
      if (own.has(one.cell) || one.kernel?.lacksDocument !== false) return;
      offer(mark, { model: one.kernel.model, questions: null });
      this.strip(one);
      return;
    }
    worlds.want(one, mark.world);
    const stream = worlds.of(mark.world).run(mark.run);
    if (stream !== null) one.since = Infinity;
    if (performance.now() > one.since + PATIENCE) {
      // The server cannot read the spools of this run: they are on other hosts.
      this.refused.add(mark.panel);
      this.drop(one);
      if (one.widget !== null) this.put(one, one.widget);
      return;
    }
    let model = stream;
    if (one.freshest.kernelLeads(stream, one.place, performance.now())) {
      one.kernel ??= new Receiver(); // it begins with the next document
      const found = one.kernel.lacksDocument ? null : one.kernel.model;
      if (found !== null && (stream === null || covers(found, stream.reach))) model = found;
    } else {
      one.kernel = null;
    }
    if (model !== null) {
      const ranks = model.ranks.map((rank) => rank.rank);
      const { context, sessionContext } = this.panel;
      const kernel = (): string => sessionContext.session?.kernel?.id ?? "";
      offer(mark, { model, questions: new Asker(worlds, mark, ranks, kernel, () => context.localPath) });
    }
    this.strip(one);
  }

  /** Replace a widget by the document of its run, at its place. */
  private strip(one: Shown): void {
    const index = this.indexOf(one);
    if (index === null) return;
    const { data } = one.cell.outputs.get(index);
    if (WIDGET in data) this.put(one, Object.fromEntries(Object.entries(data).filter(([kind]) => kind !== WIDGET)));
  }

  /** Bring documents up to date, before the notebook is saved. */
  private keep(): void {
    for (const one of this.shown.values()) {
      const index = this.indexOf(one);
      if (index === null || one.document === null) continue;
      const document: unknown = JSON.parse(new TextDecoder().decode(one.document));
      this.put(one, { ...one.cell.outputs.get(index).data, [MIME]: document });
    }
  }

  /** Take a kernel's broadcast; returns whether it brought news of a run. */
  private hear(one: Shown, message: KernelMessage.IMessage): boolean {
    const { comm_id, data, transient } = message.content as Broadcast;
    if (message.header.msg_type === "update_display_data") {
      if (transient?.display_id === one.mark.panel && !own.has(one.cell)) this.put(one, data as Bundle);
      return false;
    }
    if (message.header.msg_type !== "comm_msg" || comm_id !== one.comm) return false;
    const views = (message.buffers ?? []).map(viewOf);
    if (data?.method === "custom" && data.content?.type === "news") {
      one.place = { outcome: "running", reach: data.content.status.reach ?? [] };
      one.kernel?.receive(data.content, views);
      return true;
    }
    const place =
      data?.method === "update" ? (data.buffer_paths ?? []).findIndex((path) => path[0] === "document") : -1;
    if (place < 0) return false;
    one.document = views[place]!;
    if (one.kernel?.lacksDocument !== true) return false;
    one.kernel.take(one.document);
    return true;
  }

  private put(one: Shown, data: Bundle): void {
    const index = this.indexOf(one);
    if (index === null) return;
    const { metadata } = one.cell.outputs.get(index);
    one.cell.outputs.set(index, { output_type: "display_data", data, metadata });
  }

  private indexOf({ cell, mark }: Shown): number | null {
    if (cell.isDisposed) return null;
    for (let index = 0; index < cell.outputs.length; index += 1) {
      if (markOf(cell.outputs.get(index).metadata)?.panel === mark.panel) return index;
    }
    return null;
  }

  private drop(one: Shown): void {
    this.shown.delete(one.mark.panel);
    this.worlds.want(one, null);
    offer(one.mark, null);
  }

  // Cells that run, and that this page did not start.

  /** This page runs a cell: it gets its output from the kernel. */
  private run(cell: CodeCell): void {
    own.add(cell);
    resumed.get(cell)?.stop();
    resumed.delete(cell);
    for (const one of [...this.shown.values()]) if (one.cell === cell) this.drop(one);
  }

  /** The kernel that this page has given cells to is gone. */
  private disown(): void {
    for (const cell of this.panel.context.model.cells) own.delete(cell as unknown as CodeCell);
    this.find();
  }

  /** Find cells whose output this page has missed. */
  private find(): void {
    const { panel, worlds } = this;
    if (panel.isDisposed || !worlds.connected) return;
    const kernel = panel.sessionContext.session?.kernel?.id;
    const found: [CodeCell, string, number][] = [];
    for (const one of this.shown.values()) found.push([one.cell, one.mark.world, one.mark.run]);
    for (const world of worlds.worlds) {
      if (kernel === undefined || world.driver?.kernel !== kernel) continue;
      for (const run of world.runs) {
        const cell = run.cell === "" ? undefined : this.cellOf(run.cell);
        if (cell !== undefined) found.push([cell, world.id, run.number]);
      }
    }
    for (const [cell, world, run] of found) {
      const before = resumed.get(cell);
      if (own.has(cell) || (before?.world === world && before.run >= run)) continue;
      if (worlds.find(world) === undefined) continue;
      before?.stop();
      resumed.set(cell, new Resumed(worlds, cell, world, run));
    }
  }

  /** What the runs of a cell ask: none where they have ended, null where the page knows of no run. */
  private asked(cell: string): Asked {
    const { panel, worlds } = this;
    const kernel = panel.sessionContext.session?.kernel?.id;
    if (!worlds.connected || kernel === undefined) return null;
    let found: Asked = null;
    for (const world of worlds.worlds) {
      if (world.driver?.kernel !== kernel) continue;
      if (world.run?.cell === cell) found ??= [];
      for (const run of world.runs) {
        if (run.cell !== cell) continue;
        const model = worlds.of(world.id).run(run.number);
        if (model === null) return null;
        found = [...(found ?? []), ...model.prompts];
      }
    }
    return found;
  }

  private cellOf(id: string): CodeCell | undefined {
    for (const cell of this.panel.context.model.cells) {
      if (cell.id === id && cell.type === "code") return cell as unknown as CodeCell;
    }
    return undefined;
  }
}

/** Follow the runs in the cells of all notebooks. */
export function followCells(notebooks: INotebookTracker, worlds: Worlds, scheduled: Scheduled): void {
  const add = (panel: NotebookPanel): void => {
    new NotebookRuns(panel, worlds, scheduled);
  };
  notebooks.forEach(add);
  notebooks.widgetAdded.connect((_, panel) => {
    add(panel);
  });
}
