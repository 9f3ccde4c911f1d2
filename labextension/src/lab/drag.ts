/** Drags a world into a notebook, where it becomes a cell that attaches the notebook to the world. */

import { MimeData } from "@lumino/coreutils";
import { Drag } from "@lumino/dragdrop";

/** The MIME type that a notebook accepts as cells. */
const CELLS = "application/vnd.jupyter.cells";

/** A press becomes a drag when the pointer has moved this many pixels. */
const FAR = 5;

/** Start on a mouse press; `label` follows the pointer. */
export function dragCode(event: React.MouseEvent, code: string, label: string): void {
  if (event.button !== 0) return;
  const { clientX, clientY } = event;
  const move = (moved: MouseEvent): void => {
    if (Math.abs(moved.clientX - clientX) < FAR && Math.abs(moved.clientY - clientY) < FAR) return;
    end();
    const data = new MimeData();
    data.setData(CELLS, [{ cell_type: "code", source: code, metadata: {}, outputs: [], execution_count: null }]);
    data.setData("text/plain", code);
    const image = document.createElement("div");
    image.className = "dtrain-drag";
    image.textContent = label;
    const drag = new Drag({ mimeData: data, dragImage: image, supportedActions: "copy", proposedAction: "copy" });
    void drag.start(moved.clientX, moved.clientY).then(() => {
      drag.dispose();
    });
  };
  const end = (): void => {
    document.removeEventListener("mousemove", move, true);
    document.removeEventListener("mouseup", end, true);
  };
  document.addEventListener("mousemove", move, true);
  document.addEventListener("mouseup", end, true);
}
