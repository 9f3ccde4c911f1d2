/**
 * Builds the model of a run from a document and the messages that follow it.
 *
 * Messages with points are numbered. If one was missed, for example because it came before the page listened, the next
 * document replaces it: a document gives the number of the first message that it does not include.
 */

import { evenSteps, readDocument, readDoubles, readFloats } from "./runDocument";
import type { News } from "./generated";
import { RunModel } from "./model";

export type { News };

/** At most this many messages that came too early are kept for later. */
const HELD = 64;

export class Receiver {
  readonly model = new RunModel();
  private next = 0;
  private loaded = false;
  private gap = false;
  private held: { news: News; buffers: DataView[] }[] = [];

  /** Whether it waits for a document. */
  get lacksDocument(): boolean {
    return !this.loaded || this.gap;
  }

  /** Take a document in the form in which a kernel sends it. */
  take(view: DataView | null | undefined): void {
    if (view == null || view.byteLength === 0) return;
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    this.begin(JSON.parse(new TextDecoder().decode(bytes)));
  }

  /** Take a document. A complete model takes only status and pipelines from it, and only when the run is over. */
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
    for (const { news, buffers } of held) if (news.seq >= this.next) this.receive(news, buffers);
  }

  /** Take a document that begins the messages anew, as after a lost connection. */
  restart(data: unknown): void {
    this.loaded = false;
    this.gap = false;
    this.held = [];
    this.begin(data);
  }

  /** Free all points; the next document restores them. */
  drop(): void {
    this.model.metrics.clear();
    this.model.pipelines = [];
    this.loaded = false;
    this.gap = false;
    this.held = [];
  }

  /** Take a message that follows the document. */
  receive(news: News, buffers: DataView[]): void {
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
