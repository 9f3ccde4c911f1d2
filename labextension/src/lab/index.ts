/** The plugins that JupyterLab loads. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { IEditorExtensionRegistry } from "@jupyterlab/codemirror";
import { ILauncher } from "@jupyterlab/launcher";
import { INotebookTracker, NotebookActions } from "@jupyterlab/notebook";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { IStatusBar } from "@jupyterlab/statusbar";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
// The parts below share it.
import { Actions, EXPORT } from "./actions"; // eslint-disable-line jupyter/prefer-lazy-imports
// It restores the cells of a page that has been reloaded, so it is wanted at once.
import { followCells } from "./cellRuns"; // eslint-disable-line jupyter/prefer-lazy-imports
import type { Level } from "./items";
import type { World } from "./messages";
// Editors request their extensions when the first notebook opens, which may be at once.
import { Pills } from "./pills"; // eslint-disable-line jupyter/prefer-lazy-imports
// It only registers a command, whose callback loads the tab.
import { viewOutputs } from "./outputs";
import { addRunsTab } from "./runsTab"; // eslint-disable-line jupyter/prefer-lazy-imports
import { PANEL, Sidebar, createWorld, icon } from "./sidebar";
// The item in the status bar is there when the page opens.
import { addStatus } from "./status"; // eslint-disable-line jupyter/prefer-lazy-imports
// It registers a listener, which must hear the first item.
import { notify } from "./toasts"; // eslint-disable-line jupyter/prefer-lazy-imports
// It opens the stream when the page opens, so that notifications appear even while the panel is hidden.
import { Worlds } from "./worlds"; // eslint-disable-line jupyter/prefer-lazy-imports

const SIDEBAR = "jupyter-dtrain:sidebar";
const START = "dtrain:start";

const IPYPARALLEL = "ipyparallel-labextension:plugin";
const HIDE = "jupyter labextension disable ipyparallel-labextension";

interface Settings {
  ranks: number | null;
  side: "left" | "right";
  notifications: Level;
}

const sidebar: JupyterFrontEndPlugin<void> = {
  id: SIDEBAR,
  description: "The sidebar panel that monitors and controls all worlds.",
  autoStart: true,
  optional: [
    ITranslator,
    ISettingRegistry,
    ICommandPalette,
    INotebookTracker,
    ILayoutRestorer,
    IEditorExtensionRegistry,
    IStatusBar,
    ILauncher,
  ],
  activate: (
    app: JupyterFrontEnd,
    translator: ITranslator | null,
    registry: ISettingRegistry | null,
    palette: ICommandPalette | null,
    notebooks: INotebookTracker | null,
    restorer: ILayoutRestorer | null,
    editors: IEditorExtensionRegistry | null,
    bar: IStatusBar | null,
    launcher: ILauncher | null,
  ): void => {
    const trans = (translator ?? nullTranslator).load("jupyter_dtrain");
    const worlds = new Worlds(app.serviceManager.serverSettings);
    const actions = new Actions(
      worlds,
      notebooks,
      trans,
      app.commands,
      (id) => {
        app.shell.activateById(id);
      },
      () => app.serviceManager.kernelspecs.specs?.default ?? "",
    );
    const settings: Settings = { ranks: null, side: "left", notifications: "all" };
    const here = (): string => {
      const path = notebooks?.currentWidget?.context.path ?? "";
      return path.includes("/") ? path.slice(0, path.lastIndexOf("/")) : "";
    };
    const create = (again = "", folder = here()): void => {
      void createWorld(actions, trans, { folder, ranks: settings.ranks, again });
    };
    const hint = app.hasPlugin(IPYPARALLEL)
      ? trans.__("You do not need ipyparallel's own panel. To hide it, run: %1", HIDE)
      : "";
    const panel = new Sidebar(actions, trans, create, hint);
    const show = (): void => {
      app.shell.activateById(PANEL);
    };
    const place = (): void => {
      app.shell.add(panel, settings.side, { rank: 520, type: "Distributed Training" });
    };
    restorer?.add(panel, PANEL);
    place();
    notebooks?.currentChanged.connect(() => {
      panel.update();
    });
    if (notebooks !== null) {
      followCells(notebooks, worlds, NotebookActions.executionScheduled);
      viewOutputs(notebooks, trans);
    }
    notify(worlds, settings, trans, show, (cell) => actions.isInFront(cell));
    if (editors !== null) new Pills(worlds, notebooks, trans, show).register(editors);
    if (bar !== null) addStatus(bar, worlds, trans, show);
    addRunsTab(app, palette, restorer, { actions, trans });
    addCommands(app, palette, actions);
    launcher?.add({ command: START, category: trans.__("Other"), rank: 10 });
    if (registry !== null) {
      void registry.load(SIDEBAR).then(
        (loaded) => {
          const read = (): void => {
            const { side } = settings;
            Object.assign(settings, loaded.composite);
            if (settings.side !== side) place();
          };
          loaded.changed.connect(read);
          read();
        },
        (error: unknown) => {
          console.warn("jupyter-dtrain: could not read its settings, using the defaults", error);
        },
      );
    }

    function addCommands({ commands }: JupyterFrontEnd, list: ICommandPalette | null, given: Actions): void {
      const category = trans.__("Distributed Training");
      const none = { type: "object" as const, properties: {} };
      const add = (id: string, label: string, execute: () => unknown, isEnabled: () => boolean = () => true): void => {
        commands.addCommand(id, { label, execute, isEnabled, describedBy: { args: none } });
        list?.addItem({ command: id, category });
      };
      commands.addCommand(EXPORT, {
        label: trans.__("Export the Notebook as a Job…"),
        describedBy: {
          args: { type: "object", properties: { notebook: { type: "string", description: trans.__("Its file") } } },
        },
        isEnabled: (args) => typeof args.notebook === "string" || notebooks?.currentWidget != null,
        execute: async (args) => {
          const panel = notebooks?.currentWidget;
          const asked = typeof args.notebook === "string" ? args.notebook : (panel?.context.path ?? "");
          // The server reads the file.
          const shown = notebooks?.find((one) => one.context.path === asked);
          if (shown?.context.model.dirty === true) await shown.context.save();
          const { exportNotebook } = await import("./exporting");
          await exportNotebook(given, trans, asked);
        },
      });
      list?.addItem({ command: EXPORT, category });
      const works = (): World | null => {
        const { selected } = given.worlds;
        return selected?.state === "running" ? selected : null;
      };
      const withWorld = (act: (world: World) => unknown) => (): unknown => {
        const world = works();
        return world === null ? undefined : act(world);
      };
      add("dtrain:show", trans.__("Show the Distributed Training Panel"), () => {
        show();
        // The palette gives the focus back to the notebook as it closes.
        setTimeout(() => {
          panel.node.focus();
        });
      });
      commands.addCommand(START, {
        label: ({ cwd }) => (cwd === undefined ? trans.__("Start a World…") : trans.__("Distributed Training")),
        caption: trans.__("Start a world of ranks for distributed training"),
        icon,
        execute: ({ cwd }) => {
          show();
          create("", typeof cwd === "string" ? cwd : here());
        },
        describedBy: {
          args: {
            type: "object",
            properties: { cwd: { type: "string", description: trans.__("The folder in which the ranks run") } },
          },
        },
      });
      list?.addItem({ command: START, category });
      add(
        "dtrain:attach",
        trans.__("Attach This Notebook to the World"),
        withWorld((world) => given.attach(world)),
        () => works() !== null && given.hasNotebook,
      );
      add(
        "dtrain:interrupt",
        trans.__("Interrupt the World's Cells"),
        withWorld((world) => given.interrupt(world)),
        () => (works()?.runs.length ?? 0) > 0,
      );
      add(
        "dtrain:restart",
        trans.__("Restart the World…"),
        withWorld((world) => given.restart(world)),
        () => works() !== null,
      );
      add(
        "dtrain:stop",
        trans.__("Stop the World…"),
        withWorld((world) => given.stop(world)),
        () => works() !== null,
      );
      let last = "";
      given.worlds.changed.connect(() => {
        const world = works();
        const now = `${world?.id}:${(world?.runs.length ?? 0) > 0}`;
        if (now !== last) commands.notifyCommandChanged();
        last = now;
      });
    }
  },
};

export default [sidebar];
export { icon };
