/** What a person may do with a world: asked back where something is lost, and told when it did not work. */

import { Clipboard, Dialog, Notification, showDialog } from "@jupyterlab/apputils";
import { NotebookActions, type INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { World } from "./messages";
import type { Worlds } from "./worlds";

/** The cell by which a notebook joins a world. */
export function attachCode(world: World): string {
  return `%load_ext jupyter_dtrain\n%distributed attach ${world.name}`;
}

export class Actions {
  constructor(
    readonly worlds: Worlds,
    private notebooks: INotebookTracker | null,
    private trans: TranslationBundle,
  ) {}

  /** Whether there is a notebook to attach. */
  get hasNotebook(): boolean {
    return this.notebooks?.currentWidget != null;
  }

  /** Say that something did not work. */
  fail(error: unknown): void {
    Notification.error((error as Error).message, { autoClose: 10_000 });
  }

  /** Do it; what goes wrong is told. Gives whether it worked. */
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

  async restart(world: World): Promise<void> {
    const title = this.trans.__("Restart world %1?", world.name);
    const body = this.trans.__("It gets fresh ranks. All variables of its ranks are lost, and a cell that runs ends.");
    if (await this.confirm(title, body, this.trans.__("Restart"))) {
      await this.attempt(() => this.worlds.act(world.id, "restart"));
    }
  }

  async stop(world: World): Promise<void> {
    const title = this.trans.__("Stop world %1?", world.name);
    const body = this.trans.__("Its ranks end. All their variables are lost; runs and their losses stay in the store.");
    if (await this.confirm(title, body, this.trans.__("Stop"))) await this.attempt(() => this.worlds.stop(world.id));
  }

  async kill(world: World, rank: number): Promise<void> {
    const title = this.trans.__("Kill rank %1 of world %2?", rank, world.name);
    const body = this.trans.__(
      "Its variables are lost. The other ranks keep theirs; cells on all ranks need a restart afterwards.",
    );
    if (await this.confirm(title, body, this.trans.__("Kill"))) {
      await this.attempt(() => this.worlds.act(world.id, "kill", [rank]));
    }
  }

  copyCode(world: World): void {
    Clipboard.copyToSystem(attachCode(world));
    Notification.info(this.trans.__("Copied: run it in a notebook to attach it to %1.", world.name), {
      autoClose: 4000,
    });
  }

  /** Put the attach line into the notebook that is open, above the cell that is active, and run it. */
  async attach(world: World): Promise<void> {
    const panel = this.notebooks?.currentWidget;
    if (panel == null) {
      this.fail(new Error(this.trans.__("Open a notebook first: it is attached to the world.")));
      return;
    }
    insertCell(panel, attachCode(world));
    await NotebookActions.run(panel.content, panel.sessionContext);
  }

  private async confirm(title: string, body: string, yes: string): Promise<boolean> {
    const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label: yes })];
    const result = await showDialog({ title, body, buttons, defaultButton: 0 });
    return result.button.accept;
  }
}

/** A new code cell below the active one, which is active then. */
export function insertCell(panel: NotebookPanel, source: string): void {
  const { content } = panel;
  const active = content.activeCell;
  if (active?.model.type !== "code" || active.model.sharedModel.getSource().trim() !== "") {
    NotebookActions.insertBelow(content);
  }
  content.activeCell!.model.sharedModel.setSource(source);
}
