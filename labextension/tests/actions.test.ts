import { ServerConnection } from "@jupyterlab/services";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { Actions } from "../src/lab/actions";
import type { World } from "../src/lab/messages";
import { Worlds } from "../src/lab/worlds";

/** JupyterLab's own dialog: what it shows, and whether the person means it. */
const dialog = vi.hoisted(() => ({ shown: [] as string[], accept: false }));

// These packages need a whole page.
vi.mock("@jupyterlab/notebook", () => ({ NotebookActions: {} }));
vi.mock("@jupyterlab/apputils", () => ({
  Clipboard: {},
  Notification: {
    error: (words: string) => {
      throw new Error(words);
    },
  },
  Dialog: { cancelButton: () => ({}), warnButton: () => ({}) },
  showDialog: ({ title, body }: { title: string; body: string }) => {
    dialog.shown.push(`${title} ${body}`);
    return Promise.resolve({ button: { accept: dialog.accept } });
  },
}));

const trans = {
  __: (text: string, ...parts: unknown[]) =>
    parts.reduce<string>((one, part, at) => one.replace(`%${at + 1}`, String(part)), text),
};

const driver = (kernel: string): World["driver"] => ({ name: "b.ipynb", kernel, there: true }) as never;
const world = (one: World["driver"]): World => ({ id: "w", name: "many", driver: one }) as World;

/** The server's half of a stream, which says nothing. */
class Socket {
  readyState = 0;
  send = (): void => undefined;
  close = (): void => undefined;
}

/** The actions of a page whose current notebook has the kernel "own", and the requests that they send. */
function page(): { actions: Actions; sent: string[] } {
  const sent: string[] = [];
  const fetch = async (request: Request): Promise<Response> => {
    sent.push(`${new URL(request.url).pathname} ${await request.text()}`);
    return new Response("{}", { status: 200 });
  };
  const settings = ServerConnection.makeSettings({
    baseUrl: "http://server.test/",
    wsUrl: "ws://server.test/",
    WebSocket: Socket as unknown as typeof WebSocket,
    fetch: fetch as typeof globalThis.fetch,
  });
  const notebooks = { currentWidget: { sessionContext: { session: { kernel: { id: "own" } } } } };
  const actions = new Actions(
    new Worlds(settings),
    notebooks as never,
    trans as never,
    null as never,
    () => undefined,
    () => "",
  );
  return { actions, sent };
}

describe("the interrupt button of a world", () => {
  beforeEach(() => {
    dialog.shown = [];
  });

  it("interrupts what the current notebook drives, or nobody, at once", async () => {
    const { actions, sent } = page();
    await actions.interrupt(world(driver("own")));
    await actions.interrupt(world(null), [1]);
    expect(sent).toHaveLength(2);
    expect(dialog.shown).toEqual([]);
  });

  it("asks before it ends the run of another notebook", async () => {
    const { actions, sent } = page();
    dialog.accept = false;
    await actions.interrupt(world(driver("other")));
    expect(dialog.shown).toHaveLength(1);
    expect(dialog.shown[0]).toContain("the running cell of b.ipynb ends");
    expect(sent).toEqual([]);

    dialog.accept = true;
    await actions.interrupt(world(driver("other")), [1]);
    expect(sent).toHaveLength(1);
    expect(sent[0]).toContain("interrupt");
  });
});
