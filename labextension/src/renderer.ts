/** JupyterLab's renderer of saved runs; it works without a kernel and in untrusted notebooks. */

import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Widget } from "@lumino/widgets";
import { MIME, readDocument } from "./runDocument";
import { RunModel } from "./model";
import { RunPanel } from "./panel";

class RunRenderer extends Widget implements IRenderMime.IRenderer {
  private run = new RunModel();
  private panel: RunPanel | null = null;

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    try {
      this.run.load(readDocument(model.data[MIME]));
      this.panel ??= new RunPanel(this.node, this.run);
    } catch (error) {
      this.panel?.destroy();
      this.panel = null;
      this.node.textContent = (error as Error).message;
    }
    return Promise.resolve();
  }

  override dispose(): void {
    this.panel?.destroy();
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

export default extension;
