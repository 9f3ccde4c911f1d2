import { describe, expect, it } from "vitest";
import widget from "../src/widget";

/** The kernel's half of a widget, with the part of Backbone's model that is used. */
class Model {
  sent: { type: string; id: number }[] = [];
  private listeners = new Map<string, ((...parts: unknown[]) => void)[]>();

  get = (name: string): unknown => (name === "live" ? true : null);
  on = (name: string, listener: (...parts: unknown[]) => void): void => {
    this.listeners.set(name, [...(this.listeners.get(name) ?? []), listener]);
  };
  off = (name: string): void => {
    this.listeners.delete(name);
  };
  send = (content: { type: string; id: number }): void => {
    this.sent.push(content);
  };
  tell(name: string, ...parts: unknown[]): void {
    for (const listener of this.listeners.get(name) ?? []) listener(...parts);
  }
}

interface Widget {
  initialize(place: { model: Model }): () => void;
  render(place: { model: Model; el: HTMLElement }): () => void;
}

describe("a widget whose kernel is gone", () => {
  it.each(["comm:close", "comm_live_update"])("ends what was asked, with a sentence (%s)", async (event) => {
    const model = new Model();
    const one = widget() as Widget;
    const el = document.createElement("div");
    document.body.append(el);
    const leave = one.initialize({ model });
    const close = one.render({ model, el });
    const button = [...el.querySelectorAll("button")].find((found) => found.textContent === "Profile")!;
    button.click();
    model.tell("msg:custom", { type: "heard", id: model.sent[0]!.id }, []);
    expect([model.sent[0]!.type, button.disabled]).toEqual(["profile", true]);
    model.tell(event);
    await expect.poll(() => button.disabled).toBe(false);
    expect(el.querySelector(".dtrain-notice")!.textContent).toBe(
      "The kernel has restarted or ended, so there is no answer.",
    );
    close();
    leave();
  });
});
