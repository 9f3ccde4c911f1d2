/**
 * Brings a running cell's panel back after its page was reloaded.
 *
 * A kernel that is busy with the cell tells a new page nothing about its widgets: they stay "Loading widget…", and the
 * end of the run would not reach the notebook. But all that a kernel broadcasts reaches every page, also the copy of
 * the run that our widgets keep about once a second. So: a panel that a notebook was opened with is replaced by that
 * copy, which the renderer draws, and when the run ends by what a notebook keeps.
 */

import { MIME, readDocument } from "./document";

const WIDGET = "application/vnd.jupyter.widget-view+json";

type Bundle = Record<string, unknown>;

interface Output {
  readonly data: Bundle;
  readonly metadata: Bundle;
}

/** As much as is needed here of JupyterLab's own types, which would bring most of JupyterLab into the build. */
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

/** The panel that an output shows: its widget, and the id of its display. */
function panelOf(output: Output): { comm: string; display: string } | null {
  const view = output.data[WIDGET] as { model_id?: string } | undefined;
  const mark = output.metadata.dtrain as { panel?: string } | undefined;
  if (view?.model_id === undefined || mark?.panel === undefined) return null;
  return { comm: view.model_id, display: mark.panel };
}

/** The document in a message by which a widget changes, if it is one. */
export function documentIn(message: Message): Bundle | null {
  const data = message.content.data as { method?: string; buffer_paths?: string[][] } | undefined;
  const index = data?.method === "update" ? (data.buffer_paths ?? []).findIndex((path) => path[0] === "document") : -1;
  const buffer = message.buffers?.[index];
  if (buffer === undefined || buffer.byteLength === 0) return null;
  return readDocument(JSON.parse(new TextDecoder().decode(buffer))) as unknown as Bundle;
}

/** Watch a notebook that has just been opened; nothing is done where it shows no panel of a run. */
export function resume(notebook: Notebook): void {
  const waiting = new Map<string, string>(); // display ids by comm
  for (const { model } of notebook.content.widgets) {
    for (let index = 0; index < (model.outputs?.length ?? 0); index += 1) {
      const panel = panelOf(model.outputs!.get(index));
      if (panel !== null) waiting.set(panel.comm, panel.display);
    }
  }
  if (waiting.size === 0) return;

  /** Replace what the display shows, wherever its cell is by now. */
  const show = (display: string, data: Bundle): void => {
    for (const { model } of notebook.content.widgets) {
      const outputs = model.outputs;
      for (let index = 0; index < (outputs?.length ?? 0); index += 1) {
        const mark = outputs!.get(index).metadata.dtrain as { panel?: string } | undefined;
        if (mark?.panel !== display) continue;
        outputs!.set(index, { output_type: "display_data", data, metadata: { dtrain: { panel: display } } });
      }
    }
  };

  const hear = (_: unknown, message: Message): void => {
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
      console.warn("jupyter-dtrain: a message of a run could not be read", error);
    }
  };
  notebook.sessionContext.iopubMessage.connect(hear);
  notebook.disposed.connect(() => {
    notebook.sessionContext.iopubMessage.disconnect(hear);
  });
}

const plugin = {
  id: "jupyter-dtrain:resume",
  description: "Brings the panel of a running cell back after its page was reloaded.",
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
