/** The pill on each distributed cell, which shows its target ranks and, while the cell runs, its progress. */

import { StateEffect } from "@codemirror/state";
import { Decoration, EditorView, ViewPlugin, WidgetType, type DecorationSet, type ViewUpdate } from "@codemirror/view";
import { EditorExtensionRegistry, type IEditorExtensionRegistry } from "@jupyterlab/codemirror";
import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import type { TranslationBundle } from "@jupyterlab/translation";
import { pillOf, type Look } from "./pillText";
import type { Worlds } from "./worlds";

type CellModel = NotebookPanel["content"]["widgets"][number]["model"];

/** Redraw the pill of an editor. */
const redraw = StateEffect.define();

class Pill extends WidgetType {
  constructor(
    readonly text: string,
    readonly look: Look,
    readonly title: string,
    readonly show: () => void,
  ) {
    super();
  }

  override eq(other: Pill): boolean {
    return this.text === other.text && this.look === other.look;
  }

  override toDOM(): HTMLElement {
    const pill = document.createElement("button");
    pill.type = "button";
    pill.className = "dtrain-pill";
    pill.dataset.look = this.look;
    pill.title = this.title;
    pill.textContent = this.text;
    // Not a tab stop, so that it is not in the way in the notebook; the panel shows the same by keyboard.
    pill.tabIndex = -1;
    pill.onclick = this.show;
    return pill;
  }

  override ignoreEvent(): boolean {
    return true;
  }
}

/** Puts pills on cells. */
export class Pills {
  private editors = new Set<() => void>();
  private panels = new WeakMap<CellModel, NotebookPanel>();

  constructor(
    private worlds: Worlds,
    private notebooks: INotebookTracker | null,
    private trans: TranslationBundle,
    private show: () => void,
  ) {
    const redrawAll = (): void => {
      for (const editor of this.editors) editor();
    };
    worlds.changed.connect((_, what) => {
      if (what !== "items") redrawAll();
    });
    // A notebook's kernel tells which world its cells belong to, and it often starts after they are drawn.
    notebooks?.widgetAdded.connect((_, panel) => {
      panel.sessionContext.kernelChanged.connect(redrawAll);
      void panel.sessionContext.ready.then(redrawAll);
    });
  }

  register(registry: IEditorExtensionRegistry): void {
    registry.addExtension({
      name: "jupyter-dtrain:pills",
      factory: ({ model }) => {
        const cell = model as Partial<CellModel>;
        return cell.type === "code" ? EditorExtensionRegistry.createImmutableExtension(this.extension(cell)) : null;
      },
    });
  }

  private extension(cell: Partial<CellModel>): ViewPlugin<{ pill: DecorationSet }> {
    const decorate = (view: EditorView): DecorationSet => this.decorate(view, cell as CellModel);
    const { editors } = this;
    return ViewPlugin.fromClass(
      class {
        pill: DecorationSet;
        private again: () => void;

        constructor(view: EditorView) {
          this.pill = decorate(view);
          this.again = () => {
            const now = decorate(view);
            // Leave an editor alone if its pill is up to date.
            if (textOf(now) !== textOf(this.pill)) view.dispatch({ effects: redraw.of(null) });
          };
          editors.add(this.again);
        }

        update(update: ViewUpdate): void {
          const asked = update.transactions.some((one) => one.effects.some((effect) => effect.is(redraw)));
          if (update.docChanged || asked) this.pill = decorate(update.view);
        }

        destroy(): void {
          editors.delete(this.again);
        }
      },
      { decorations: (plugin) => plugin.pill },
    );
  }

  private decorate(view: EditorView, cell: CellModel): DecorationSet {
    const { doc } = view.state;
    const kernel = this.panelOf(cell)?.sessionContext.session?.kernel?.id;
    const { worlds } = this;
    const found = pillOf(doc.iterLines(), cell.id, kernel, worlds.worlds, this.trans, (id, run) =>
      worlds.stepOf(id, run),
    );
    if (found === null) return Decoration.none;
    const title = this.trans.__("This cell runs on the ranks. Click to show the panel.");
    const widget = new Pill(found.text, found.look, title, this.show);
    return Decoration.set([Decoration.widget({ widget, side: 1 }).range(doc.line(found.line + 1).to)]);
  }

  private panelOf(cell: CellModel): NotebookPanel | undefined {
    let panel = this.panels.get(cell);
    if (panel === undefined || panel.isDisposed) {
      panel = this.notebooks?.find((one) => one.content.widgets.some((widget) => widget.model === cell));
      if (panel !== undefined) this.panels.set(cell, panel);
    }
    return panel;
  }
}

function textOf(pill: DecorationSet): string {
  const found = pill.iter().value?.spec as { widget: Pill } | undefined;
  return found === undefined ? "" : `${found.widget.look} ${found.widget.text}`;
}
