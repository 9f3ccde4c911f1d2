/**
 * Takes what is told of a run into a model: a document to start from, then messages.
 *
 * Messages with points are numbered. One that was missed (they may come before anybody listens) is made up for by the
 * next document, which says how far it reaches.
 */

import { evenSteps, readDocument, readDoubles, readFloats } from "./document";
import type { News } from "./generated";
import { RunModel } from "./model";

export type { News };

/** Messages with points that came too early are held, this many. */
const HELD = 64;

export class Receiver {
  readonly model = new RunModel();
  private next = 0;
  private loaded = false;
  private gap = false;
  private held: { news: News; buffers: DataView[] }[] = [];

  /** A document as a kernel sends it. */
  take(view: DataView | null | undefined): void {
    if (view == null || view.byteLength === 0) return;
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    this.begin(JSON.parse(new TextDecoder().decode(bytes)));
  }

  /** A document: taken where something is missing. */
  begin(data: unknown): void {
    const document = readDocument(data);
    const reach = document.seq ?? 0;
    if (this.loaded && !this.gap) {
      if (document.outcome !== "running") {
        if (document.pipelines !== undefined) this.model.setPipelines(document.pipelines);
        this.model.update(document);
      }
      return;
    }
    if (this.loaded && reach < this.next) return;
    this.loaded = true;
    this.gap = false;
    this.next = reach;
    this.model.load(document);
    const held = this.held;
    this.held = [];
    for (const { news, buffers } of held) if (news.seq >= this.next) this.hear(news, buffers);
  }

  /** Let go of all points; the next document brings back what there is to see. */
  drop(): void {
    this.model.metrics.clear();
    this.model.pipelines = [];
    this.loaded = false;
    this.gap = false;
    this.held = [];
  }

  hear(news: News, buffers: DataView[]): void {
    if (news.pipelines !== undefined && this.loaded) this.model.setPipelines(news.pipelines);
    if (news.series === undefined) {
      if (this.loaded) this.model.update(news.status);
      return;
    }
    if (!this.loaded || this.gap || news.seq !== this.next) {
      if (this.loaded && news.seq < this.next) return;
      this.gap = true;
      this.held.push({ news, buffers });
      if (this.held.length > HELD) this.held.shift();
      if (this.loaded) this.model.update(news.status);
      return;
    }
    this.next += 1;
    const values = readFloats(buffers[0]!);
    const steps = readDoubles(buffers[1]!);
    let value = 0;
    let step = 0;
    for (const [name, rank, count, first, distance] of news.series) {
      let own: Float64Array;
      if (first !== undefined && distance !== undefined) {
        own = evenSteps(first, distance, count);
      } else {
        own = steps.subarray(step, step + count);
        step += count;
      }
      this.model.append(news.names![name]!, rank, own, values.subarray(value, value + count));
      value += count;
    }
    this.model.update(news.status);
  }
}
