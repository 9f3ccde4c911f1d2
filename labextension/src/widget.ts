/**
 * The live widget: an anywidget module. What the kernel sends arrives whether or not the widget is on the page, so a
 * model is kept from the start and views only draw it.
 *
 * Messages with points are numbered. One that was missed (they may come before this module is loaded) is made up for
 * by the next document, which says how far it reaches.
 */

import { evenSteps, readDocument, readDoubles, readFloats, type Status } from "./document";
import { RunModel } from "./model";
import { RunPanel, type Answer, type Question, type Questions } from "./panel";

/** What anywidget gives. */
interface WidgetModel {
  get(name: string): unknown;
  on(name: string, listener: (...parts: never[]) => void): void;
  off(name: string, listener: (...parts: never[]) => void): void;
  send(content: unknown): void;
}

interface News {
  type: "news";
  seq: number;
  status: Status;
  names?: string[];
  /** Which name, rank, how many points and, where the steps are even, the first and their distance. */
  series?: [number, number, number, number?, number?][];
}

interface Said {
  type: "heard" | "answer";
  id: number;
  text?: string;
  cut?: number;
  problem?: string;
}

/** Milliseconds after which a question that nobody heard is given up. */
const PATIENCE = 1000;

const ADVICE: Record<Question, string> = {
  interrupt:
    "The kernel does not listen while its cell runs. Press ■ in the notebook's toolbar instead (or Kernel → Interrupt).",
  stacks:
    "The kernel does not listen while its cell runs. Press ■ in the notebook's toolbar, then: %distributed stacks",
  output: "The kernel does not listen while its cell runs; the output can be seen when the cell has ended.",
};

/** Messages with points that came too early are held, this many. */
const HELD = 64;

/** Takes what the kernel sends into a model. */
export class Receiver {
  readonly model = new RunModel();
  private next = 0;
  private loaded = false;
  private gap = false;
  private held: { news: News; buffers: DataView[] }[] = [];

  /** A document: taken where something is missing. */
  take(view: DataView | null | undefined): void {
    if (view == null || view.byteLength === 0) return;
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    const document = readDocument(JSON.parse(new TextDecoder().decode(bytes)));
    const reach = document.seq ?? 0;
    if (this.loaded && !this.gap) {
      if (document.outcome !== "running") this.model.update(document);
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
    this.loaded = false;
    this.gap = false;
    this.held = [];
  }

  hear(news: News, buffers: DataView[]): void {
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

/** Asks the kernel; a question that is not heard within a second fails with what to do instead. */
class Asker implements Questions {
  private count = 0;
  private open = new Map<number, { said: (said: Said) => void }>();

  constructor(private send: (content: unknown) => void) {}

  ask(question: Question, rank?: number): Promise<Answer> {
    this.count += 1;
    const id = this.count;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.open.delete(id);
        reject(new Error(ADVICE[question]));
      }, PATIENCE);
      const said = (message: Said): void => {
        clearTimeout(timer);
        if (message.type === "heard") return;
        this.open.delete(id);
        if (message.problem !== undefined) reject(new Error(message.problem));
        else resolve({ text: message.text ?? "", cut: message.cut ?? 0 });
      };
      this.open.set(id, { said });
      this.send({ type: question, id, rank });
    });
  }

  said(message: Said): void {
    this.open.get(message.id)?.said(message);
  }
}

export default function widget(): unknown {
  const receiver = new Receiver();
  const panels = new Set<RunPanel>();
  let asker: Asker | null = null;
  // The kernel keeps widgets of some ended runs open: without this the page would hold all their points.
  const dropIfOver = (model: WidgetModel): void => {
    if (model.get("live") !== true && panels.size === 0) receiver.drop();
  };

  return {
    initialize({ model }: { model: WidgetModel }) {
      asker = new Asker((content) => {
        model.send(content);
      });
      const onDocument = (): void => {
        receiver.take(model.get("document") as DataView | null);
      };
      const onMessage = (message: News | Said, buffers: DataView[]): void => {
        if (message.type === "news") receiver.hear(message, buffers);
        else asker?.said(message);
      };
      const onLive = (): void => {
        for (const panel of panels) panel.setQuestions(model.get("live") === true ? asker : null);
        dropIfOver(model);
      };
      onDocument();
      model.on("change:document", onDocument);
      model.on("change:live", onLive);
      model.on("msg:custom", onMessage);
      return () => {
        model.off("change:document", onDocument);
        model.off("change:live", onLive);
        model.off("msg:custom", onMessage);
      };
    },
    render({ model, el }: { model: WidgetModel; el: HTMLElement }) {
      receiver.take(model.get("document") as DataView | null);
      const panel = new RunPanel(el, receiver.model);
      panels.add(panel);
      panel.setQuestions(model.get("live") === true ? asker : null);
      return () => {
        panels.delete(panel);
        panel.destroy();
        dropIfOver(model);
      };
    },
  };
}
