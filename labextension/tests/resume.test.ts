import { describe, expect, it, vi } from "vitest";
import { MIME } from "../src/runDocument";
import { resume } from "../src/resume";

const WIDGET = "application/vnd.jupyter.widget-view+json";

type Slot = (sender: unknown, args: unknown) => void;

/** The parts of a one-cell notebook that the plugin uses. */
function notebook(...outputs: { data: Record<string, unknown>; metadata: Record<string, unknown> }[]) {
  const slots = new Set<Slot>();
  return {
    outputs,
    say: (message: unknown) => {
      for (const slot of slots) slot(null, message);
    },
    listeners: slots,
    widget: {
      context: { ready: Promise.resolve() },
      content: {
        widgets: [
          {
            model: {
              outputs: {
                length: outputs.length,
                get: (index: number) => outputs[index]!,
                set: (index: number, value: unknown) => {
                  outputs[index] = value as (typeof outputs)[number];
                },
              },
            },
          },
        ],
      },
      sessionContext: {
        iopubMessage: {
          connect: (slot: Slot) => Boolean(slots.add(slot)),
          disconnect: (slot: Slot) => slots.delete(slot),
        },
      },
      disposed: { connect: () => true, disconnect: () => true },
    },
  };
}

const panel = () => ({ data: { [WIDGET]: { model_id: "c" } }, metadata: { dtrain: { panel: "d" } } });
const kept = { version: 1, ranks: [], metrics: [], outcome: "running" };
const update = (comm: string, content: unknown) => ({
  header: { msg_type: "comm_msg" },
  content: { comm_id: comm, data: { method: "update", state: {}, buffer_paths: [["document"]] } },
  buffers: [new TextEncoder().encode(JSON.stringify(content))],
});

describe("a notebook that was opened with a running panel", () => {
  it("shows the kernel's broadcasts, and then the saved run", () => {
    const found = notebook({ data: { "text/plain": "other" }, metadata: {} }, panel());
    resume(found.widget as never);
    found.say(update("other", kept));
    expect(found.outputs[1]!.data).toHaveProperty([WIDGET]);
    found.say(update("c", kept));
    expect(found.outputs[1]!.data).toEqual({ [MIME]: kept });
    const last = { [MIME]: { ...kept, outcome: "ok" }, "text/plain": "Run 1" };
    found.say({
      header: { msg_type: "update_display_data" },
      content: { data: last, metadata: {}, transient: { display_id: "d" } },
    });
    expect(found.outputs[1]!.data).toEqual(last);
    found.say(update("c", kept));
    expect(found.outputs[1]!.data).toEqual(last);
    expect(found.outputs[0]!.data).toEqual({ "text/plain": "other" });
  });

  it("is left alone if it has no panel, or if a message is malformed", () => {
    const none = notebook({ data: { [WIDGET]: { model_id: "c" } }, metadata: {} });
    resume(none.widget as never);
    expect(none.listeners.size).toBe(0);
    const said = vi.spyOn(console, "warn").mockImplementation(() => undefined);
    const some = notebook(panel());
    resume(some.widget as never);
    some.say(update("c", "nonsense"));
    some.say({ header: { msg_type: "status" }, content: {} });
    expect(some.outputs[0]!.data).toHaveProperty([WIDGET]);
    expect(said).toHaveBeenCalledOnce();
  });
});
