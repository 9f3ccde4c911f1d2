/** The "Runs" tab of JupyterLab's main area: the command that opens it. Its contents are loaded when it first opens. */

import type { ILayoutRestorer, JupyterFrontEnd } from "@jupyterlab/application";
import { MainAreaWidget, WidgetTracker, type ICommandPalette } from "@jupyterlab/apputils";
import { URLExt } from "@jupyterlab/coreutils";
import { RUNS, inNotebook7 } from "./actions";
import type { RunsTab } from "./runs/tab";
import type { SectionProps } from "./section";
import { icon } from "./sidebar";

const TAB = "jupyter-dtrain-runs";

/** The part of an address that opens the tab, with the ids of runs. */
const WANTED = "dtrain-runs";

/** Notebook 7 has no room for a tab beside the notebook: JupyterLab shows it, in a page and a workspace of its own. */
function openInLab(base: string, ids: readonly number[]): void {
  const address = URLExt.join(base, "lab", "workspaces", WANTED);
  window.open(`${address}?${WANTED}=${ids.join()}`, WANTED);
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
  let chosen: number[] | null = null;
  const make = async (): Promise<MainAreaWidget<RunsTab>> => {
    const { RunsTab } = await import("./runs/tab");
    const remember = (now: number[]): void => {
      chosen = now;
      void tracker.save(tab);
    };
    const tab = new MainAreaWidget({ content: new RunsTab(shared, { chosen, remember }) });
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
        },
      },
    },
    execute: async (args) => {
      const asked = Array.isArray(args.chosen) ? (args.chosen as number[]) : [];
      if (inNotebook7()) {
        openInLab(shared.actions.worlds.settings.baseUrl, asked);
        return;
      }
      // Two calls before the tab is there must not make two.
      if (made === null || (await made).isDisposed) {
        if (asked.length > 0) chosen = [...new Set([...(chosen ?? []), ...asked])];
        made = make();
        made.catch(() => {
          made = null;
        });
      }
      const tab = await made;
      tab.content.choose(asked);
      app.shell.activateById(tab.id);
    },
  });
  const wanted = new URLSearchParams(location.search).get(WANTED);
  if (wanted !== null && !inNotebook7()) {
    const ids = wanted.split(",").filter((id) => id !== "");
    void app.restored.then(() => app.commands.execute(RUNS, { chosen: ids.map(Number) }));
  }
  palette?.addItem({ command: RUNS, category: trans.__("Distributed Training") });
  void restorer?.restore(tracker, {
    command: RUNS,
    name: () => "runs",
    args: () => (chosen === null ? {} : { chosen }),
  });
}
