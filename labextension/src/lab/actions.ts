/** The actions on worlds: asks for confirmation before anything is lost, and reports failures as notifications. */

import { Clipboard, Dialog, Notification, showDialog } from "@jupyterlab/apputils";
import { NotebookActions, type INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { CommandRegistry } from "@lumino/commands";
import type { World } from "./messages";
import { ALL, RunsClient } from "./runs/client";
import type { Worlds } from "./worlds";

/** The command of the tab that shows runs in the main area. */
export const RUNS = "dtrain:runs";

/** Among so many of the newest runs of a world one is looked for. */
const NEWEST = 200;

/** Whether a kernel has the extension, in its own words. */
const LOADED = "'jupyter_dtrain' in get_ipython().extension_manager.loaded";

/** Milliseconds within which a kernel that is not busy answers. */
const ANSWERS = 2000;

/** The code of a cell that attaches its notebook to a world. A kernel that is `loaded` would be told so once more. */
export function attachCode(world: World, loaded = false): string {
  return `${loaded ? "" : "%load_ext jupyter_dtrain\n"}%distributed attach ${world.name}`;
}

export class Actions {
  constructor(
    readonly worlds: Worlds,
    private notebooks: INotebookTracker | null,
    private trans: TranslationBundle,
    readonly commands: CommandRegistry,
    /** Shows the notebook with this id of its widget. */
    private reveal: (id: string) => void,
  ) {}

  /** Whether a notebook is open that can be attached. */
  get hasNotebook(): boolean {
    return this.notebooks?.currentWidget != null;
  }

  /** Whether the cell with this id is in an open notebook. */
  hasCell(id: string): boolean {
    return this.findCell(id) !== null;
  }

  /** Show the cell with this id, and make it the active one. */
  async openCell(id: string): Promise<void> {
    const found = this.findCell(id);
    if (found === null) return;
    const { panel, index } = found;
    this.reveal(panel.id);
    panel.content.activeCellIndex = index;
    await panel.content.scrollToItem(index, "center");
  }

  /** Show runs in the Runs tab; without ids as they were chosen there before. */
  async openRuns(ids?: number[]): Promise<void> {
    await this.commands.execute(RUNS, ids === undefined ? {} : { chosen: ids });
  }

  /** Show the run of a world that has this number. */
  async openRun(world: string, number: number): Promise<void> {
    await this.attempt(async () => {
      const { runs } = await new RunsClient(this.worlds.settings).list({ ...ALL, world }, NEWEST);
      await this.openRuns(runs.filter((run) => run.number === number).map((run) => run.id));
    });
  }

  private findCell(id: string): { panel: NotebookPanel; index: number } | null {
    let index = -1;
    const panel = this.notebooks?.find((one) => {
      index = one.content.widgets.findIndex((cell) => cell.model.id === id);
      return index >= 0;
    });
    return panel === undefined ? null : { panel, index };
  }

  /** Report an error in a notification. */
  fail(error: unknown): void {
    Notification.error((error as Error).message, { autoClose: 10_000 });
  }

  /** Run `task` and report its failure. Returns whether it succeeded. */
  async attempt(task: () => Promise<unknown>): Promise<boolean> {
    try {
      await task();
      return true;
    } catch (error) {
      this.fail(error);
      return false;
    }
  }

  async interrupt(world: World, ranks?: number[]): Promise<void> {
    await this.attempt(() => this.worlds.act(world.id, "interrupt", ranks));
  }

  /** Replace dead ranks; nothing is lost by that, so it needs no consent. */
  async heal(world: World): Promise<void> {
    await this.attempt(() => this.worlds.act(world.id, "heal"));
  }

  async restart(world: World): Promise<void> {
    const title = this.trans.__("Restart world %1?", world.name);
    const body = this.trans.__(
      "All ranks are replaced by fresh ones. Their variables are lost, and a running cell ends.",
    );
    if (await this.confirm(title, body, this.trans.__("Restart"))) {
      await this.attempt(() => this.worlds.act(world.id, "restart"));
    }
  }

  async stop(world: World): Promise<void> {
    const title = this.trans.__("Stop world %1?", world.name);
    const body = this.trans.__("All ranks end, and their variables are lost. Stored runs are kept.");
    if (await this.confirm(title, body, this.trans.__("Stop"))) await this.attempt(() => this.worlds.stop(world.id));
  }

  /** Take a world that did not start off the list. */
  async dismiss(world: World): Promise<void> {
    await this.attempt(() => this.worlds.stop(world.id));
  }

  async kill(world: World, rank: number): Promise<void> {
    const title = this.trans.__("Kill rank %1 of world %2?", rank, world.name);
    const body = this.trans.__(
      "The rank's variables are lost; other ranks keep theirs. Before cells can use all ranks again, the dead one must be replaced.",
    );
    if (await this.confirm(title, body, this.trans.__("Kill"))) {
      await this.attempt(() => this.worlds.act(world.id, "kill", [rank]));
    }
  }

  copyCode(world: World): void {
    Clipboard.copyToSystem(attachCode(world));
    Notification.info(this.trans.__("Code copied. Run it to attach a notebook to %1.", world.name), {
      autoClose: 4000,
    });
  }

  /** Insert the code that attaches the current notebook to the world into a new cell, and run it. */
  async attach(world: World): Promise<void> {
    const panel = this.notebooks?.currentWidget;
    if (panel == null) {
      this.fail(new Error(this.trans.__("Open a notebook first, then attach it.")));
      return;
    }
    insertCell(panel, attachCode(world, await hasExtension(panel)));
    await NotebookActions.run(panel.content, panel.sessionContext);
  }

  /** Ask whether to do it. */
  async confirm(title: string, body: string, yes: string): Promise<boolean> {
    const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label: yes })];
    const result = await showDialog({ title, body, buttons, defaultButton: 0 });
    return result.button.accept;
  }
}

/** Whether the kernel of a notebook has loaded the extension; false if it does not say so soon. */
async function hasExtension({ sessionContext }: NotebookPanel): Promise<boolean> {
  const asked = sessionContext.session?.kernel?.requestExecute({
    code: "",
    silent: true,
    store_history: false,
    user_expressions: { loaded: LOADED },
  });
  const late = new Promise<null>((done) => {
    setTimeout(done, ANSWERS, null);
  });
  const reply = await Promise.race([asked?.done.catch(() => null) ?? null, late]);
  if (reply?.content.status !== "ok") return false;
  const { loaded } = reply.content.user_expressions as { loaded?: { data?: Record<string, unknown> } };
  return loaded?.data?.["text/plain"] === "True";
}

/** Put `source` into a new code cell below the active one, or into the active one if that is empty. */
export function insertCell(panel: NotebookPanel, source: string): void {
  const { content } = panel;
  const active = content.activeCell;
  if (active?.model.type !== "code" || active.model.sharedModel.getSource().trim() !== "") {
    NotebookActions.insertBelow(content);
  }
  content.activeCell!.model.sharedModel.setSource(source);
}
