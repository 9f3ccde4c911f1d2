/** Stand-ins for browser features that jsdom lacks and that components use when they start. */

class Observer {
  observe = (): void => undefined;
  unobserve = (): void => undefined;
  disconnect = (): void => undefined;
}

Object.assign(globalThis, {
  ResizeObserver: Observer,
  Path2D: Observer,
  DragEvent: class extends Event {},
});
window.matchMedia = ((query: string) => ({
  matches: false,
  media: query,
  addEventListener: () => undefined,
  removeEventListener: () => undefined,
})) as unknown as typeof window.matchMedia;
HTMLCanvasElement.prototype.getContext = (() => null) as never;
Element.prototype.scrollIntoView = () => undefined;
