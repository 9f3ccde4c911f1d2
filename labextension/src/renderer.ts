/**
 * JupyterLab's renderer of runs; it works without a kernel and in untrusted notebooks.
 *
 * The document of a run that has ended is all there is to draw. That of a run that goes on is where the drawing starts:
 * if the server's stream follows the run, the panel goes on with it, and has its buttons.
 */

import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Widget } from "@lumino/widgets";
import { liveRun, markOf, onOffer, type LiveRun, type Mark } from "./live";
import { MIME, readDocument } from "./runDocument";
import { RunModel } from "./model";
import { RunPanel } from "./panel";
import type { ScalingView } from "./scaling";

const SCALING = "application/vnd.jupyter-dtrain.scaling+json";

/** Milliseconds after which a panel without news says that it shows the state at which the notebook was saved. */
const PATIENCE = 5000;

class RunRenderer extends Widget implements IRenderMime.IRenderer {
  private run = new RunModel();
  private panel: RunPanel | null = null;
  private mark: Mark | null = null;
  private followed: LiveRun | null = null;
  private leave: (() => void) | null = null;
  private timer = 0;
  private unsubscribe = onOffer(() => {
    this.follow();
  });

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    try {
      const document = readDocument(model.data[MIME]);
      this.mark = document.outcome === "running" ? markOf(model.metadata) : null;
      this.follow();
      if (this.followed === null) this.run.load(document);
      this.panel ??= new RunPanel(this.node, this.run);
      this.ask();
    } catch (error) {
      this.panel?.destroy();
      this.panel = null;
      this.node.textContent = (error as Error).message;
    }
    return Promise.resolve();
  }

  /** Go on with the stream, if it follows the run. */
  private follow(): void {
    const found = this.mark === null ? null : liveRun(this.mark);
    if (found?.model === this.followed?.model) return;
    this.leave?.();
    this.leave = null;
    this.followed = found;
    if (found !== null) this.leave = this.run.mirror(found.model);
    this.ask();
  }

  /** Show the buttons where requests can be answered. */
  private ask(): void {
    this.panel?.setQuestions(this.followed?.questions ?? null);
    clearTimeout(this.timer);
    if (this.mark === null || this.followed !== null) {
      this.panel?.setPaused(false);
      return;
    }
    this.timer = window.setTimeout(() => {
      this.panel?.setPaused(true);
    }, PATIENCE);
  }

  override dispose(): void {
    clearTimeout(this.timer);
    this.unsubscribe();
    this.leave?.();
    this.panel?.destroy();
    super.dispose();
  }
}

/** Renders scaling reports. Few notebooks have one, so its code is loaded for the first. */
class ScalingRenderer extends Widget implements IRenderMime.IRenderer {
  private view: ScalingView | null = null;

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const { show } = await import("./scaling");
    this.view = show(this.node, model.data[SCALING], this.view);
  }

  override dispose(): void {
    this.view?.destroy();
    super.dispose();
  }
}

const extension: IRenderMime.IExtension = {
  id: "jupyter-dtrain:run",
  rendererFactory: {
    // A document's text is inserted as text and its numbers are drawn as lines, so nothing in it can run.
    safe: true,
    mimeTypes: [MIME],
    createRenderer: () => new RunRenderer(),
  },
  rank: 0,
  dataType: "json",
};

const scaling: IRenderMime.IExtension = {
  id: "jupyter-dtrain:scaling",
  rendererFactory: {
    safe: true, // as above
    mimeTypes: [SCALING],
    createRenderer: () => new ScalingRenderer(),
  },
  rank: 0,
  dataType: "json",
};

export default [extension, scaling];
