/** The actions on worlds: asks for confirmation before anything is lost, and reports failures as notifications. */

import { Clipboard, Dialog, Notification, showDialog } from "@jupyterlab/apputils";
import { PageConfig } from "@jupyterlab/coreutils";
import { NotebookActions, type INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { CommandRegistry } from "@lumino/commands";
import type { Steerer } from "../steering";
import type { World } from "./messages";
import { steererOf } from "./prompts";
import { PLAIN, RunsClient } from "./runs/client";
import { conditionOf } from "./runs/conditions";
import type { Worlds } from "./worlds";

/** The command of the tab that shows runs in the main area. */
export const RUNS = "dtrain:runs";

/** The command that makes a job of a notebook. */
export const EXPORT = "dtrain:export";

/** JupyterLab's command that makes a notebook. */
const NEW = "notebook:create-new";

/** Whether a kernel has the extension, in its own words. */
const LOADED = "'jupyter_dtrain' in get_ipython().extension_manager.loaded";

/** Milliseconds within which a kernel that is not busy answers. */
const ANSWERS = 2000;

/** Whether the page is one of Notebook 7, which shows one document. */
export function inNotebook7(): boolean {
  return PageConfig.getOption("notebookPage") !== "";
}

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
    /** The name of the kernel that a new notebook gets. */
    private kernel: () => string,
  ) {}

  /** Whether notebooks open in this page; in Notebook 7 each has a page of its own. */
  get opensNotebooks(): boolean {
    return !inNotebook7() && this.commands.hasCommand(NEW);
  }

  /** Whether a notebook is open that can be attached. */
  get hasNotebook(): boolean {
    return this.notebooks?.currentWidget != null;
  }

  /** Whether the cell with this id is in an open notebook. */
  hasCell(id: string): boolean {
    return this.findCell(id) !== null;
  }

  /** Whether a notebook of the kernel with this id is open. */
  hasKernel(id: string): boolean {
    return this.notebooks?.find((panel) => panel.sessionContext.session?.kernel?.id === id) !== undefined;
  }

  /** Whether the notebook that is in front has the cell with this id. */
  isInFront(cell: string): boolean {
    const widgets = this.notebooks?.currentWidget?.content.widgets ?? [];
    return widgets.some(({ model }) => model.id === cell);
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
      const where = `${conditionOf("world", world)} number:${number}`;
      const { runs } = await new RunsClient(this.worlds.settings).list(
        { ...PLAIN, where, everything: true },
        { limit: 1 },
      );
      await this.openRuns(runs.map((run) => run.id));
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

  /** Interrupt at once what the current notebook controls; ask before another notebook's run ends. */
  async interrupt(world: World, ranks?: number[]): Promise<void> {
    const { driver, name } = world;
    if (driver !== null && driver.kernel !== this.notebooks?.currentWidget?.sessionContext.session?.kernel?.id) {
      const title = this.trans.__("Interrupt world %1?", name);
      const body = this.trans.__(
        "The current notebook does not control this world: the running cell of %1 ends. Variables are kept.",
        driver.name,
      );
      if (!(await this.confirm(title, body, this.trans.__("Interrupt")))) return;
    }
    await this.attempt(() => this.worlds.act(world.id, "interrupt", ranks));
  }

  /** The hand of this page on the loops of a world. */
  steerer(world: World): Steerer {
    return steererOf(this.worlds, world.id, (kernel) => this.hasKernel(kernel));
  }

  /** Replace dead ranks. Nothing is lost by that, but the new ranks know nothing of what the cells have defined. */
  async heal(world: World): Promise<void> {
    const { trans } = this;
    const title = trans.__("Replace the dead ranks of world %1?", world.name);
    const body = trans.__(
      "The other ranks keep their processes and variables. The new ranks are empty until cells define variables and imports on them again. " +
        "In a notebook, %1 also runs earlier cells on the new ranks, and %2 copies variables from rank 0.",
      "%distributed replace --replay RUNS",
      "%distributed broadcast --from 0 NAME",
    );
    if (!(await this.confirm(title, body, trans.__("Replace")))) return;
    if (await this.attempt(() => this.worlds.act(world.id, "heal"))) {
      const done = trans.__(
        "The new ranks of world %1 are empty: run the cells again that define what they need.",
        world.name,
      );
      Notification.info(done, { autoClose: 10_000 });
    }
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

  /** Open a new notebook that is attached to the world. */
  async openNotebook(world: World): Promise<void> {
    await this.attempt(async () => {
      const panel = (await this.commands.execute(NEW, { kernelName: this.kernel() })) as NotebookPanel;
      await panel.context.ready;
      await panel.sessionContext.ready;
      insertCell(panel, attachCode(world));
      await NotebookActions.run(panel.content, panel.sessionContext);
    });
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
