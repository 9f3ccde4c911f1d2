/** Finds the cells with output of ranks. Their view of it is loaded when the first such cell is there. */

import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import type { TranslationBundle } from "@jupyterlab/translation";
import { markOf } from "../live";
import type { OutputCell } from "./output/view";

/** Give a cell a view of its output as soon as that comes from ranks. */
function watch(cell: OutputCell, trans: TranslationBundle): void {
  const { outputs } = cell.model;
  let found = false;
  const look = (): void => {
    for (let index = 0; index < outputs.length && !found; index += 1) {
      if (markOf(outputs.get(index).metadata) === null) continue;
      found = true;
      void import("./output/view").then(({ OutputView }) => {
        if (!cell.isDisposed) new OutputView(cell, trans);
      });
    }
  };
  outputs.changed.connect(look);
  look();
}

/** Give each cell whose output comes from ranks a view of it: see `output/view.ts`. */
export function viewOutputs(notebooks: INotebookTracker, trans: TranslationBundle): void {
  const watched = new WeakSet();
  const follow = (_: unknown, { content, context }: NotebookPanel): void => {
    const all = (): void => {
      for (const cell of content.widgets) {
        if (cell.model.type !== "code" || watched.has(cell)) continue;
        watched.add(cell);
        watch(cell as unknown as OutputCell, trans);
      }
    };
    void context.ready.then(() => {
      if (content.isDisposed) return;
      context.model.cells.changed.connect(all);
      all();
    });
  };
  notebooks.forEach((panel) => {
    follow(null, panel);
  });
  notebooks.widgetAdded.connect(follow);
}
