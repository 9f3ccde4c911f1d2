/** The plugins that JupyterLab loads. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, Notification } from "@jupyterlab/apputils";
import { IEditorExtensionRegistry } from "@jupyterlab/codemirror";
import { INotebookTracker } from "@jupyterlab/notebook";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { IStatusBar } from "@jupyterlab/statusbar";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import resume from "../resume";
import { Actions } from "./actions";
import type { Item, World } from "./messages";
// Editors request their extensions when the first notebook opens, which may be at once.
import { Pills } from "./pills"; // eslint-disable-line jupyter/prefer-lazy-imports
// It only registers a command, whose callback loads the tab.
import { addRunsTab } from "./runsTab"; // eslint-disable-line jupyter/prefer-lazy-imports
import { PANEL, Sidebar, createWorld, icon } from "./sidebar";
import { addStatus } from "./status";
// It opens the stream when the page opens, so that notifications appear even while the panel is hidden.
import { Worlds } from "./worlds"; // eslint-disable-line jupyter/prefer-lazy-imports

const SIDEBAR = "jupyter-dtrain:sidebar";

const IPYPARALLEL = "ipyparallel-labextension:plugin";
const HIDE = "jupyter labextension disable ipyparallel-labextension";

/** In seconds: another page, or this one before a reload, has already shown notifications for older items. */
const FRESH = 15;

type Level = "none" | "errors" | "warnings" | "all";
const SHOWN: Record<Level, Item["level"][]> = {
  none: [],
  errors: ["error"],
  warnings: ["error", "warning"],
  all: ["error", "warning", "info"],
};

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
  ): void => {
    const trans = (translator ?? nullTranslator).load("jupyter_dtrain");
    const worlds = new Worlds(app.serviceManager.serverSettings);
    const actions = new Actions(worlds, notebooks, trans, app.commands);
    const settings: Settings = { ranks: null, side: "left", notifications: "all" };
    const create = (): void => {
      const path = notebooks?.currentWidget?.context.path ?? "";
      const folder = path.includes("/") ? path.slice(0, path.lastIndexOf("/")) : "";
      void createWorld(actions, trans, { folder, ranks: settings.ranks });
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
    notify(worlds, settings, trans.__("Show"), show);
    if (editors !== null) new Pills(worlds, notebooks, trans, show).register(editors);
    if (bar !== null) addStatus(bar, worlds, trans, show);
    addRunsTab(app, palette, restorer, { actions, trans });
    addCommands(app, palette, { actions, create, settings });
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

    function addCommands(
      { commands }: JupyterFrontEnd,
      list: ICommandPalette | null,
      given: { actions: Actions; create: () => void; settings: Settings },
    ): void {
      const category = trans.__("Distributed Training");
      const none = { type: "object" as const, properties: {} };
      const add = (id: string, label: string, execute: () => unknown, isEnabled: () => boolean = () => true): void => {
        commands.addCommand(id, { label, execute, isEnabled, describedBy: { args: none } });
        list?.addItem({ command: id, category });
      };
      const works = (): World | null => {
        const { selected } = given.actions.worlds;
        return selected?.state === "running" ? selected : null;
      };
      const withWorld = (act: (world: World) => unknown) => (): unknown => {
        const world = works();
        return world === null ? undefined : act(world);
      };
      add("dtrain:show", trans.__("Show the Distributed Training Panel"), show);
      add("dtrain:start", trans.__("Start a World…"), given.create);
      add(
        "dtrain:attach",
        trans.__("Attach This Notebook to the World"),
        withWorld((world) => given.actions.attach(world)),
        () => works() !== null && given.actions.hasNotebook,
      );
      add(
        "dtrain:interrupt",
        trans.__("Interrupt the World's Cells"),
        withWorld((world) => given.actions.interrupt(world)),
        () => (works()?.runs.length ?? 0) > 0,
      );
      add(
        "dtrain:restart",
        trans.__("Restart the World…"),
        withWorld((world) => given.actions.restart(world)),
        () => works() !== null,
      );
      add(
        "dtrain:stop",
        trans.__("Stop the World…"),
        withWorld((world) => given.actions.stop(world)),
        () => works() !== null,
      );
      let last = "";
      given.actions.worlds.changed.connect(() => {
        const world = works();
        const now = `${world?.id}:${(world?.runs.length ?? 0) > 0}`;
        if (now !== last) commands.notifyCommandChanged();
        last = now;
      });
    }
  },
};

/** Show what needs attention as JupyterLab notifications; the end of a run only if the page has no focus. */
function notify(worlds: Worlds, settings: Settings, label: string, show: () => void): void {
  worlds.arrived.connect((_, item) => {
    if (Date.now() / 1000 - item.time > FRESH || !SHOWN[settings.notifications].includes(item.level)) return;
    const ended = item.kind === "finished" || item.kind === "failed";
    if (ended && document.hasFocus()) return;
    Notification.emit(`${item.words} (${item.name})`, item.level, {
      autoClose: item.level === "info" ? 8000 : false,
      actions: [{ label, callback: show }],
    });
  });
}

export default [resume, sidebar];
export { icon };
