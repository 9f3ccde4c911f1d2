/**
 * Restores the panel of a running cell after a page reload.
 *
 * While a kernel runs the cell, it cannot send its widgets' state to a new page: they stay at "Loading widget…", and
 * the end of the run would not reach the notebook. But a kernel's broadcasts reach every page, including the copy of
 * the run that our widgets update about once a second. So this plugin replaces a panel that it finds in a notebook
 * with that copy, which the renderer draws, and with the saved form when the run ends.
 */

import { liveRun, markOf } from "./live";
import { MIME, readDocument } from "./runDocument";

const WIDGET = "application/vnd.jupyter.widget-view+json";

type Bundle = Record<string, unknown>;

interface Output {
  readonly data: Bundle;
  readonly metadata: Bundle;
}

/** The parts of JupyterLab's types that are used here: the originals would pull most of JupyterLab into the build. */
interface Signal<T> {
  connect(slot: (sender: unknown, args: T) => void): boolean;
  disconnect(slot: (sender: unknown, args: T) => void): boolean;
}

interface Message {
  header: { msg_type: string };
  content: {
    comm_id?: string;
    data?: Bundle;
    metadata?: Bundle;
    transient?: { display_id?: string };
  };
  buffers?: (ArrayBuffer | ArrayBufferView)[];
}

interface Outputs {
  readonly length: number;
  get(index: number): Output;
  set(index: number, value: Bundle): void;
}

interface Notebook {
  context: { ready: Promise<void> };
  content: { widgets: readonly { model: { outputs?: Outputs } }[] };
  sessionContext: { iopubMessage: Signal<Message> };
  disposed: Signal<undefined>;
}

interface App {
  restored: Promise<void>;
  shell: {
    currentChanged?: Signal<{ newValue: unknown }>;
    currentWidget: unknown;
    widgets(area: string): Iterable<unknown>;
  };
}

function isNotebook(widget: unknown): widget is Notebook {
  const found = widget as Partial<Notebook> | null;
  return found?.sessionContext !== undefined && found.context !== undefined && Array.isArray(found.content?.widgets);
}

/** The ids of an output's widget and display; null if the output is not a panel. */
function panelOf(output: Output): { comm: string; display: string } | null {
  const view = output.data[WIDGET] as { model_id?: string } | undefined;
  const mark = markOf(output.metadata);
  if (view?.model_id === undefined || mark === null) return null;
  return { comm: view.model_id, display: mark.panel };
}

/** The document in a widget's update message; null if it has none. */
export function documentIn(message: Message): Bundle | null {
  const data = message.content.data as { method?: string; buffer_paths?: string[][] } | undefined;
  const index = data?.method === "update" ? (data.buffer_paths ?? []).findIndex((path) => path[0] === "document") : -1;
  const buffer = message.buffers?.[index];
  if (buffer === undefined || buffer.byteLength === 0) return null;
  return readDocument(JSON.parse(new TextDecoder().decode(buffer))) as unknown as Bundle;
}

/** Watch a notebook that was just opened; does nothing if no output is a run's panel. */
export function resume(notebook: Notebook): void {
  const waiting = new Map<string, string>(); // display ids by comm
  for (const { model } of notebook.content.widgets) {
    for (let index = 0; index < (model.outputs?.length ?? 0); index += 1) {
      const panel = panelOf(model.outputs!.get(index));
      if (panel !== null) waiting.set(panel.comm, panel.display);
    }
  }
  if (waiting.size === 0) return;

  /** Replace the display's content, even if its cell has moved. */
  const show = (display: string, data: Bundle): void => {
    for (const { model } of notebook.content.widgets) {
      const outputs = model.outputs;
      for (let index = 0; index < (outputs?.length ?? 0); index += 1) {
        const mark = markOf(outputs!.get(index).metadata);
        // The server's stream is the better source.
        if (mark?.panel !== display || liveRun(mark) !== null) continue;
        outputs!.set(index, { output_type: "display_data", data, metadata: { dtrain: { panel: display } } });
      }
    }
  };

  const receive = (_: unknown, message: Message): void => {
    try {
      const { comm_id: comm, data, transient } = message.content;
      if (message.header.msg_type === "comm_msg" && comm !== undefined && waiting.has(comm)) {
        const document = documentIn(message);
        if (document !== null) show(waiting.get(comm)!, { [MIME]: document });
      } else if (message.header.msg_type === "update_display_data" && transient?.display_id !== undefined) {
        for (const [known, display] of waiting) {
          if (display !== transient.display_id || data === undefined) continue;
          show(display, data);
          waiting.delete(known);
        }
      }
    } catch (error) {
      console.warn("jupyter-dtrain: could not read a message about a run", error);
    }
  };
  notebook.sessionContext.iopubMessage.connect(receive);
  notebook.disposed.connect(() => {
    notebook.sessionContext.iopubMessage.disconnect(receive);
  });
}

const plugin = {
  id: "jupyter-dtrain:resume",
  description: "Restores the panel of a running cell after a page reload.",
  autoStart: true,
  activate: (app: App): void => {
    const seen = new WeakSet();
    const look = (widget: unknown): void => {
      if (!isNotebook(widget) || seen.has(widget)) return;
      seen.add(widget);
      void widget.context.ready.then(() => {
        resume(widget);
      });
    };
    const all = (): void => {
      for (const widget of app.shell.widgets("main")) look(widget);
    };
    app.shell.currentChanged?.connect(all);
    void app.restored.then(all);
  },
};

export default plugin;
