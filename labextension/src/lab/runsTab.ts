/** The "Runs" tab of JupyterLab's main area: the command that opens it. Its contents are loaded when it first opens. */

import type { ILayoutRestorer, JupyterFrontEnd } from "@jupyterlab/application";
import { MainAreaWidget, Notification, WidgetTracker, type ICommandPalette } from "@jupyterlab/apputils";
import { URLExt } from "@jupyterlab/coreutils";
import type { ReadonlyPartialJSONObject } from "@lumino/coreutils";
import { RUNS, inNotebook7 } from "./actions";
import type { TableView } from "./messages";
import { PLAIN } from "./runs/client";
import type { Asked, RunsTab, Shown } from "./runs/tab";
import type { SectionProps } from "./section";
import { icon } from "./sidebar";

const TAB = "jupyter-dtrain-runs";

/** The parts of an address that open the tab: the ids of runs in its charts, and that of the run whose page is open. */
const WANTED = "dtrain-runs";
const PAGE = "dtrain-run";

/**
 * Notebook 7 has no room for a tab beside the notebook: JupyterLab shows it, in a page and a workspace of its own.
 *
 * A browser that lets a page open no other shows a button in its place, since a click may.
 */
function openInLab(base: string, { chosen, page }: Asked, trans: SectionProps["trans"]): void {
  const query = new URLSearchParams({ [WANTED]: chosen.join() });
  if (page !== null) query.set(PAGE, `${page}`);
  const address = `${URLExt.join(base, "lab", "workspaces", WANTED)}?${query.toString()}`;
  if (window.open(address, WANTED) !== null) return;
  Notification.warning(trans.__("The browser has not let this page open the Runs tab."), {
    autoClose: false,
    actions: [
      {
        label: trans.__("Open the Runs Tab"),
        callback: () => {
          window.open(address, WANTED);
        },
      },
    ],
  });
}

/** What the arguments of the command ask for; they may come from an address or from the layout of an older version. */
function askedFor(args: ReadonlyPartialJSONObject): Asked {
  const { chosen, page } = args;
  return {
    chosen: Array.isArray(chosen) ? chosen.filter((id): id is number => Number.isInteger(id)) : [],
    page: Number.isInteger(page) ? (page as number) : null,
  };
}

/** The view that a layout has kept; what it lacks or has of another kind is as in a new tab. */
function viewOf(kept: unknown): TableView {
  const given = (typeof kept === "object" && kept !== null ? kept : {}) as Partial<Record<keyof TableView, unknown>>;
  const texts = (value: unknown): string[] =>
    Array.isArray(value) ? value.filter((one): one is string => typeof one === "string") : [];
  return {
    ...PLAIN,
    where: typeof given.where === "string" ? given.where : "",
    group: typeof given.group === "string" ? given.group : "",
    sort: texts(given.sort),
    columns: texts(given.columns),
    everything: given.everything === true,
  };
}

/** Add the command. The tab comes back when the page is reloaded, with the runs that were chosen in it. */
export function addRunsTab(
  app: JupyterFrontEnd,
  palette: ICommandPalette | null,
  restorer: ILayoutRestorer | null,
  shared: SectionProps,
): void {
  const { trans } = shared;
  const tracker = new WidgetTracker<MainAreaWidget<RunsTab>>({ namespace: TAB });
  let shown: Shown = { chosen: null, view: PLAIN, page: null };
  const make = async (): Promise<MainAreaWidget<RunsTab>> => {
    const { RunsTab } = await import("./runs/tab");
    const remember = (now: Shown): void => {
      shown = now;
      void tracker.save(tab);
    };
    const tab = new MainAreaWidget({ content: new RunsTab(shared, { shown, remember }) });
    tab.id = TAB;
    tab.title.label = trans.__("Runs");
    tab.title.icon = icon;
    await tracker.add(tab);
    app.shell.add(tab, "main", { mode: "split-right", type: "Runs" });
    return tab;
  };
  let made: Promise<MainAreaWidget<RunsTab>> | null = null;
  app.commands.addCommand(RUNS, {
    label: trans.__("Open the Runs Tab"),
    describedBy: {
      args: {
        type: "object",
        properties: {
          chosen: { type: "array", items: { type: "number" }, description: trans.__("Runs in the charts") },
          page: { type: "number", description: trans.__("The run whose page is open") },
          view: { type: "object", description: trans.__("Filter, order, columns and groups of a new tab") },
        },
      },
    },
    execute: async (args) => {
      const asked = askedFor(args);
      if (inNotebook7()) {
        openInLab(shared.actions.worlds.settings.baseUrl, asked, trans);
        return;
      }
      // Two calls before the tab is there must not make two.
      if (made === null || (await made).isDisposed) {
        const { chosen } = shown;
        shown = {
          chosen: asked.chosen.length > 0 ? [...new Set([...(chosen ?? []), ...asked.chosen])] : chosen,
          view: args.view === undefined ? shown.view : viewOf(args.view),
          page: asked.page,
        };
        made = make();
        made.catch(() => {
          made = null;
        });
      }
      const tab = await made;
      tab.content.ask(asked);
      app.shell.activateById(tab.id);
    },
  });
  const query = new URLSearchParams(location.search);
  if ((query.has(WANTED) || query.has(PAGE)) && !inNotebook7()) {
    const chosen = (query.get(WANTED) ?? "").split(",").filter((id) => id !== "");
    const page = query.get(PAGE);
    void app.restored.then(() =>
      app.commands.execute(RUNS, { chosen: chosen.map(Number), ...(page === null ? {} : { page: Number(page) }) }),
    );
  }
  palette?.addItem({ command: RUNS, category: trans.__("Distributed Training") });
  void restorer?.restore(tracker, {
    command: RUNS,
    name: () => "runs",
    args: () => {
      const { chosen, view, page } = shown;
      const given = { view: { ...view }, ...(page === null ? {} : { page }) };
      return chosen === null ? given : { ...given, chosen: [...chosen] };
    },
  });
}
