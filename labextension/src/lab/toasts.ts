/** JupyterLab notifications for what needs attention and for runs that finished while the person was away. */

import { Notification } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import { clock } from "../format";
import { isNews, isTold, type Level } from "./items";
import type { Worlds } from "./worlds";

/** Milliseconds after which a notification leaves; what it says stays in the panel. */
const LEAVES = 10_000;

/** Show them as the settings say; their button calls `show`. `isInFront`: whether a cell is in the notebook in front. */
export function notify(
  worlds: Worlds,
  settings: { notifications: Level },
  trans: TranslationBundle,
  show: () => void,
  isInFront: (cell: string) => boolean,
): void {
  const options = { autoClose: LEAVES, actions: [{ label: trans.__("Show"), callback: show }] };
  worlds.arrived.connect((_, item) => {
    const inFront = isInFront(item.cell);
    if (!isTold(item, settings.notifications, Date.now() / 1000, document.hasFocus(), inFront)) return;
    Notification.emit(
      item.words.includes(item.name) ? item.words : `${item.words} (${item.name})`,
      item.level,
      options,
    );
  });
  worlds.ended.connect((_, [world, run]) => {
    if (!isNews(run, settings.notifications, document.hasFocus())) return;
    const took = clock(run.ended! - run.started);
    Notification.info(trans.__("Run %1 finished after %2 (%3)", run.number, took, world.name), options);
  });
}
