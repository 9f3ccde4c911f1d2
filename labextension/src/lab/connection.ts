/** The way to the server extension: requests that fail with words, and a stream that comes back by itself. */

import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";
import type { Message } from "./messages";

const ROOT = "dtrain";

/** Milliseconds after which a request is given up. */
const PATIENCE = 15_000;

/** Milliseconds between two tries to open the stream: at first, and at most. */
const FIRST = 500;
const LONGEST = 15_000;

/** Ask the server. Throws an Error that says what to do. */
export async function request<T>(
  settings: ServerConnection.ISettings,
  method: "GET" | "POST" | "DELETE",
  path: string[],
  body?: unknown,
): Promise<T> {
  const url = URLExt.join(settings.baseUrl, ROOT, ...path.map(encodeURIComponent));
  const given = new AbortController();
  const timer = setTimeout(() => {
    given.abort();
  }, PATIENCE);
  let response: Response;
  try {
    const init: RequestInit = { method, signal: given.signal };
    if (body !== undefined) init.body = JSON.stringify(body);
    response = await ServerConnection.makeRequest(url, init, settings);
  } catch {
    throw new Error(
      given.signal.aborted
        ? "The server did not answer in time: try again."
        : "The server cannot be reached: it may have ended, or the network is down.",
    );
  } finally {
    clearTimeout(timer);
  }
  const text = await response.text();
  let content: unknown = null;
  try {
    content = JSON.parse(text);
  } catch {
    // Told below: an answer of ours is JSON, whatever it says.
  }
  if (!response.ok) {
    const told = (content as { message?: string } | null)?.message;
    if (response.status === 404 && told === undefined) {
      throw new Error("The server has no jupyter_dtrain extension: is it installed where JupyterLab runs?");
    }
    throw new Error(told ?? `The server answered ${response.status} ${response.statusText}.`);
  }
  if (content === null) throw new Error("The server's answer cannot be read.");
  return content as T;
}

/** The stream of one page: opened again, with longer and longer pauses, whenever it ends. */
export class Stream {
  private socket: WebSocket | null = null;
  private timer = 0;
  private pause = FIRST;
  private closed = false;
  private watched: string[] = [];

  constructor(
    private settings: ServerConnection.ISettings,
    private hear: (message: Message) => void,
    /** Called when it is open, and when it has ended. */
    private told: (open: boolean) => void,
  ) {
    this.open();
  }

  /** Be told closely of these worlds, from now on. */
  watch(ids: string[]): void {
    if (ids.join() === this.watched.join()) return;
    this.watched = ids;
    this.say({ watch: ids });
  }

  /** Forget an item of attention, or all of them. */
  dismiss(id: string | null): void {
    this.say({ dismiss: id });
  }

  /** Try again now, rather than after the pause. */
  hurry(): void {
    if (this.socket === null && !this.closed) {
      clearTimeout(this.timer);
      this.open();
    }
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.timer);
    this.socket?.close();
  }

  private say(content: unknown): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(content));
  }

  private open(): void {
    const { settings } = this;
    let url = URLExt.join(settings.wsUrl, ROOT, "stream");
    if (settings.appendToken && settings.token !== "") url += `?token=${encodeURIComponent(settings.token)}`;
    const socket = new settings.WebSocket(url);
    this.socket = socket;
    socket.onopen = () => {
      this.pause = FIRST;
      if (this.watched.length > 0) this.say({ watch: this.watched });
      this.told(true);
    };
    socket.onmessage = (event: MessageEvent<string>) => {
      try {
        this.hear(JSON.parse(event.data) as Message);
      } catch (error) {
        console.warn("jupyter-dtrain: a message of the server could not be read", error);
      }
    };
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      this.told(false);
      if (this.closed) return;
      this.timer = window.setTimeout(() => {
        this.open();
      }, this.pause);
      this.pause = Math.min(LONGEST, 2 * this.pause);
    };
  }
}
