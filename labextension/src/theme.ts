/** Colours that follow the page's theme and stay distinguishable with any kind of colour vision. */

const LIGHT = ["#0072b2", "#d55e00", "#008f68", "#b8558c", "#9a7200", "#2b8cc4", "#6b6b6b", "#5d3a9b"];
const DARK = ["#56b4e9", "#f08a3c", "#2ec495", "#e39ac4", "#e6c229", "#9fd3f5", "#b5b5b5", "#b39ddb"];

/** The parts of a step: neighbours differ in lightness, with any kind of colour vision. Python's pictures have the first. */
const LIGHT_PARTS: Record<string, string> = {
  data: "#e69f00",
  copy: "#f5d879",
  forward: "#8cc7ee",
  backward: "#0072b2",
  compiled: "#3d9bd1",
  optimizer: "#5d3a9b",
  communication: "#d55e00",
  device: "#d895be",
  checkpoint: "#00785a",
  logging: "#7cc9ae",
  other: "#a6a6a6",
};
const DARK_PARTS: Record<string, string> = {
  ...LIGHT_PARTS,
  forward: "#9fd3f5",
  backward: "#2474ab",
  optimizer: "#7f5fc0",
  communication: "#e8751a",
  checkpoint: "#159b78",
  other: "#8c8c8c",
};

export interface Theme {
  dark: boolean;
  text: string;
  grid: string;
  mean: string;
  band: string;
  alarm: string;
  rank: (rank: number) => string;
  /** Of a part of a step. */
  part: (part: string) => string;
  /** Lines after the first eight are dashed, so that two ranks with the same colour differ. */
  dash: (rank: number) => number[];
  /** Lines of runs differ in their dashes at once: they may lie on each other, and each must show. */
  dashOfRun: (run: number) => number[];
}

/** The theme of the page around `element`. */
export function themeOf(element: Element): Theme {
  const text = getComputedStyle(element).color || "rgb(0, 0, 0)";
  const [red = 0, green = 0, blue = 0] = (text.match(/[\d.]+/g) ?? []).map(Number);
  const dark = 0.299 * red + 0.587 * green + 0.114 * blue > 128;
  const palette = dark ? DARK : LIGHT;
  return {
    dark,
    text,
    grid: dark ? "rgba(255,255,255,0.12)" : "rgba(0,0,0,0.09)",
    mean: dark ? "#f2f2f2" : "#1a1a1a",
    band: dark ? "rgba(86,180,233,0.22)" : "rgba(0,114,178,0.15)",
    alarm: dark ? "#f08a3c" : "#c44e00",
    rank: (rank) => palette[rank % palette.length]!,
    part: (part) => (dark ? DARK_PARTS : LIGHT_PARTS)[part] ?? palette[6]!,
    dash: (rank) => [[], [6, 3], [2, 3]][Math.floor(rank / palette.length) % 3]!,
    dashOfRun: (run) => [[], [8, 4], [2, 3], [9, 3, 2, 3], [5, 2]][run % 5]!,
  };
}

/** Call `listener` when the page's theme changes; returns a function that unsubscribes it. */
export function onThemeChange(listener: () => void): () => void {
  const observer = new MutationObserver(listener);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "class"] });
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", listener);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", listener);
  };
}

/** A colour for `share` from 0 to 1: from dark blue through green to yellow, with increasing lightness. */
export function heat(share: number): string {
  const stops: [number, number, number][] = [
    [68, 1, 84],
    [59, 82, 139],
    [33, 145, 140],
    [94, 201, 98],
    [253, 231, 37],
  ];
  const place = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const one = stops[Math.floor(place)]!;
  const other = stops[Math.floor(place) + 1]!;
  const part = place - Math.floor(place);
  const [red, green, blue] = one.map((value, index) => Math.round(value + part * (other[index]! - value)));
  return `rgb(${red},${green},${blue})`;
}
