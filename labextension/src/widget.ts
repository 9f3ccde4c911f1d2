/**
 * The live widget, an anywidget module. The kernel's messages arrive whether or not the widget is on the page, so the
 * model is kept from the start, and views only draw it.
 */

import type { PanelProfile } from "./generated";
import { RunPanel, type Answer, type Question, type Questions } from "./panel";
import type { Answerer } from "./prompts";
import { Receiver, type News } from "./receiver";

/** The part of anywidget's model that is used here. */
interface WidgetModel {
  get(name: string): unknown;
  on(name: string, listener: (...parts: never[]) => void): void;
  off(name: string, listener: (...parts: never[]) => void): void;
  send(content: unknown): void;
}

interface Said {
  type: "heard" | "answer";
  id: number;
  text?: string;
  cut?: number;
  profile?: PanelProfile | undefined;
  problem?: string;
}

/** Milliseconds after which a request that the kernel has not acknowledged fails. */
const PATIENCE = 1000;

/** The model's events when the kernel closes its half, and when the kernel itself restarts or ends. */
const CLOSED = ["comm:close", "comm_live_update"];

const ADVICE: Record<Question | "prompt", string> = {
  prompt:
    "The kernel cannot respond while its cell runs. Answer in the cell's box: below it, or (VS Code) at the top of the window.",
  interrupt:
    "The kernel cannot respond while its cell runs. Press ■ in the notebook's toolbar (or Kernel → Interrupt).",
  stacks:
    "The kernel cannot respond while its cell runs. Press ■ in the notebook's toolbar, then run: %distributed stacks",
  profile:
    "The kernel cannot respond while its cell runs. In another notebook, run %distributed attach, then %distributed profile.",
  output: "The kernel cannot respond while its cell runs. You can see the output when the cell has ended.",
};

/**
 * Sends requests to the kernel; one that is not acknowledged within a second fails with advice on what to do. Those that
 * are open when the kernel is gone fail, too.
 */
class Asker implements Questions {
  private count = 0;
  private open = new Map<number, (said: Said) => void>();

  /** The kernel that runs the cell is the one that may answer its ranks. */
  readonly prompts: Answerer = {
    instead: "",
    answer: async (_run, prompts, text) => {
      await this.request({ type: "prompt", prompts, text }, ADVICE.prompt);
    },
  };

  constructor(private send: (content: unknown) => void) {}

  ask(question: Question, rank?: number): Promise<Answer> {
    return this.request({ type: question, rank }, ADVICE[question]);
  }

  private request(content: Record<string, unknown>, advice: string): Promise<Answer> {
    this.count += 1;
    const id = this.count;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.open.delete(id);
        reject(new Error(advice));
      }, PATIENCE);
      const said = (message: Said): void => {
        clearTimeout(timer);
        if (message.type === "heard") return;
        this.open.delete(id);
        if (message.problem !== undefined) reject(new Error(message.problem));
        else resolve({ text: message.text ?? "", cut: message.cut ?? 0, profile: message.profile });
      };
      this.open.set(id, said);
      this.send({ ...content, id });
    });
  }

  said(message: Said): void {
    this.open.get(message.id)?.(message);
  }

  /** The kernel answers no more. */
  end(): void {
    const problem = "The kernel has restarted or ended, so there is no answer.";
    for (const [id, said] of [...this.open]) said({ type: "answer", id, problem });
  }
}

export default function widget(): unknown {
  const receiver = new Receiver();
  const panels = new Set<RunPanel>();
  let asker: Asker | null = null;
  // The kernel keeps the widgets of some ended runs open; without this, the page would keep all their points.
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
      const onMessage = (message: (News & { type: "news" }) | Said, buffers: DataView[]): void => {
        if (message.type === "news") receiver.receive(message, buffers);
        else asker?.said(message);
      };
      const onLive = (): void => {
        for (const panel of panels) panel.setQuestions(model.get("live") === true ? asker : null);
        dropIfOver(model);
      };
      const onClose = (): void => {
        asker?.end();
      };
      onDocument();
      model.on("change:document", onDocument);
      model.on("change:live", onLive);
      model.on("msg:custom", onMessage);
      for (const event of CLOSED) model.on(event, onClose);
      return () => {
        model.off("change:document", onDocument);
        model.off("change:live", onLive);
        model.off("msg:custom", onMessage);
        for (const event of CLOSED) model.off(event, onClose);
        onClose();
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
