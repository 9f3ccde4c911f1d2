/** The connection to the server extension: requests that fail with a clear message, and a stream that reconnects. */

import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";
import type { Message } from "./messages";

const ROOT = "dtrain";

/** Milliseconds after which a request fails. */
const PATIENCE = 15_000;

/** The first and the longest pause between two attempts to open the stream, in milliseconds. */
const FIRST = 500;
const LONGEST = 15_000;

/** The server no longer has what was requested. */
export class NotFound extends Error {}
/** A request that the server refused. */
export class RequestError extends Error {
  constructor(
    words: string,
    /** The start option that is wrong; empty if none is. */
    readonly option: string,
    /** Where the text of a filter is wrong; null if it is not, or if that is not known. */
    readonly place: { position: number; length: number } | null = null,
  ) {
    super(words);
  }
}

/** What the server says of a request that it refuses. */
interface Refusal {
  message?: string;
  option?: string;
  position?: number;
  length?: number;
}

/** Parameters in an address; a list stands for one parameter several times. */
export type Query = Record<string, string | readonly string[]>;

export function queryOf(query: Query): string {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    [value].flat().map((one): [string, string] => [name, one]),
  );
  return pairs.length === 0 ? "" : `?${new URLSearchParams(pairs).toString()}`;
}

/** Send a request to the server and return its answer. Throws an Error that says what to do. */
export async function request<T>(
  settings: ServerConnection.ISettings,
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE",
  path: string[],
  body?: unknown,
  query: Query = {},
): Promise<T> {
  const text = await read(settings, method, path, body, query);
  let content: unknown = null;
  try {
    content = JSON.parse(text);
  } catch {
    // Reported below: every answer but a file is JSON.
  }
  if (content === null) throw new Error("Could not read the server's response.");
  return content as T;
}

/** Like `request`, for an answer that is not JSON. */
export async function read(...what: Parameters<typeof answer>): Promise<string> {
  return (await answer(...what)).text();
}

/** Like `request`, for the bytes of a file. */
export async function readBlob(...what: Parameters<typeof answer>): Promise<Blob> {
  return (await answer(...what)).blob();
}

async function answer(
  settings: ServerConnection.ISettings,
  method: string,
  path: string[],
  body?: unknown,
  query: Query = {},
): Promise<Response> {
  const url = URLExt.join(settings.baseUrl, ROOT, ...path.map(encodeURIComponent)) + queryOf(query);
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
        ? "The server did not respond in time. Try again."
        : "Cannot reach the server: it may have stopped, or the network is down.",
    );
  } finally {
    clearTimeout(timer);
  }
  if (!response.ok) {
    const text = await response.text();
    let refused: Refusal | null = null;
    try {
      refused = JSON.parse(text) as Refusal | null;
    } catch {
      // Another program's page; the error below gives its status.
    }
    const problem = refused?.message;
    if (response.status === 404 && problem === undefined) {
      throw new Error("The server has no jupyter_dtrain extension. Is it installed where JupyterLab runs?");
    }
    if (response.status === 404) throw new NotFound(problem);
    const words = problem ?? `The server responded with ${response.status} ${response.statusText}.`;
    const { option = "", position, length } = refused ?? {};
    throw new RequestError(words, option, position === undefined ? null : { position, length: length ?? 1 });
  }
  return response;
}

/** The page's stream of messages from the server. When it closes, it reconnects after increasing pauses. */
export class Stream {
  private socket: WebSocket | null = null;
  private timer = 0;
  private pause = FIRST;
  private closed = false;
  private watched: string[] = [];

  constructor(
    private settings: ServerConnection.ISettings,
    private receive: (message: Message) => void,
    /** Called with true when the stream opens, and with false when it closes. */
    private opened: (open: boolean) => void,
  ) {
    this.open();
  }

  /** Subscribe to the details of these worlds, instead of those before. */
  watch(ids: string[]): void {
    if (ids.join() === this.watched.join()) return;
    this.watched = ids;
    this.send({ watch: ids });
  }

  /** Dismiss one item that needs attention; null dismisses all. */
  dismiss(id: string | null): void {
    this.send({ dismiss: id });
  }

  /** Reconnect now instead of after the pause. */
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

  private send(content: unknown): void {
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
      if (this.watched.length > 0) this.send({ watch: this.watched });
      this.opened(true);
    };
    socket.onmessage = (event: MessageEvent<string>) => {
      try {
        this.receive(JSON.parse(event.data) as Message);
      } catch (error) {
        console.warn("jupyter-dtrain: could not read a message from the server", error);
      }
    };
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      this.opened(false);
      if (this.closed) return;
      this.timer = window.setTimeout(() => {
        this.open();
      }, this.pause);
      this.pause = Math.min(LONGEST, 2 * this.pause);
    };
  }
}
