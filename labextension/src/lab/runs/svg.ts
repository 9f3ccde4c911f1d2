/** A chart as an SVG picture of its own: curves, axes and legend, drawn from the data. All text is escaped. */

import { logTicks, ticks } from "./ticks";

export interface Curve {
  label: string;
  colour: string;
  dash: readonly number[];
  xs: readonly number[];
  ys: readonly number[];
  /** The values before smoothing, drawn faintly. */
  raw: readonly number[] | null;
  /** Where a value was NaN or infinite. */
  bad: readonly number[];
  /** Whether its points are drawn: 0 for no, 1 for full, more for empty circles. */
  mark?: number;
}

export interface Picture {
  title: string;
  /** The name of the horizontal axis. */
  axis: string;
  curves: readonly Curve[];
  x: readonly [number, number];
  y: readonly [number, number];
  log: boolean;
  colours: { text: string; grid: string; page: string; alarm: string };
  formatX: (value: number) => string;
  formatY: (value: number) => string;
}

const WIDTH = 800;
const HEIGHT = 420;
const LEFT = 74;
const RIGHT = 16;
const TOP = 36;
const BELOW = 44;
const ROW = 18;
/** Points of an evaluation that are drawn. */
const POINTS = 60;
/** The width of a letter of 12 pixels, generously. */
const LETTER = 6.8;

export function drawSvg(picture: Picture): { text: string; width: number; height: number } {
  const { x, y, log, colours } = picture;
  const right = WIDTH - RIGHT;
  const bottom = HEIGHT - BELOW;
  const raise = log ? Math.log10 : (value: number): number => value;
  const [low, high] = [raise(y[0]), raise(y[1])];
  const across = (value: number): number => LEFT + ((value - x[0]) / (x[1] - x[0] || 1)) * (right - LEFT);
  const up = (value: number): number => bottom - ((raise(value) - low) / (high - low || 1)) * (bottom - TOP);
  const parts: string[] = [];
  const text = (at: [number, number], words: string, more: string): void => {
    parts.push(`<text x="${round(at[0])}" y="${round(at[1])}" ${more}>${escaped(words)}</text>`);
  };
  const rule = (from: [number, number], to: [number, number]): void => {
    const [a, b, c, d] = [...from, ...to].map(round);
    parts.push(`<path d="M${a} ${b}L${c} ${d}" stroke="${colours.grid}"/>`);
  };
  for (const value of log ? logTicks(y[0], y[1]) : ticks(y[0], y[1], 5)) {
    rule([LEFT, up(value)], [right, up(value)]);
    text([LEFT - 8, up(value) + 4], picture.formatY(value), 'text-anchor="end"');
  }
  for (const value of ticks(x[0], x[1], 8)) {
    rule([across(value), bottom], [across(value), bottom + 5]);
    text([across(value), bottom + 18], picture.formatX(value), 'text-anchor="middle"');
  }
  text([(LEFT + right) / 2, HEIGHT - 6], picture.axis, 'text-anchor="middle"');
  text([LEFT, 22], picture.title, 'font-weight="600" font-size="14"');
  const curves = picture.curves.flatMap((curve) => {
    const drawn = (ys: readonly number[]): string => pathOf(curve.xs, ys, x, log, across, up);
    const faint = curve.raw === null ? [] : [`<path d="${drawn(curve.raw)}" stroke="${curve.colour}" opacity="0.3"/>`];
    return [
      ...faint,
      `<path d="${drawn(curve.ys)}" stroke="${curve.colour}" stroke-width="1.6"${dashes(curve.dash)}/>`,
      ...pointsOf(curve, log, across, up, colours.page),
    ];
  });
  const marks = [...new Set(picture.curves.flatMap((curve) => curve.bad))]
    .filter((at) => at >= x[0] && at <= x[1])
    .map((at) => `<path d="M${round(across(at) - 5)} ${TOP - 5}h10l-5 10z" fill="${colours.alarm}"/>`);
  const [legend, rows] = legendOf(picture.curves);
  const height = HEIGHT + rows * ROW + (rows > 0 ? 8 : 0);
  return {
    width: WIDTH,
    height,
    text:
      `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" ` +
      `font-family="system-ui, sans-serif" font-size="12" fill="${colours.text}">` +
      `<title>${escaped(picture.title)}</title><rect width="100%" height="100%" fill="${colours.page}"/>` +
      `<clipPath id="plot"><rect x="${LEFT}" y="${TOP}" width="${right - LEFT}" height="${bottom - TOP}"/></clipPath>` +
      `${parts.join("")}<g clip-path="url(#plot)" fill="none" stroke-linejoin="round">${curves.join("")}</g>` +
      `${marks.join("")}${legend}</svg>\n`,
  };
}

/** The part of a curve between the edges, with a point beyond each; on a logarithmic axis only what is positive. */
function pathOf(
  xs: readonly number[],
  ys: readonly number[],
  [low, high]: readonly [number, number],
  log: boolean,
  across: (value: number) => number,
  up: (value: number) => number,
): string {
  const inside = xs.map((x) => x >= low && x <= high);
  const found: string[] = [];
  xs.forEach((x, index) => {
    const near = inside[index]! || inside[index + 1] === true || inside[index - 1] === true;
    if (near && !(log && ys[index]! <= 0)) found.push(`${round(across(x))} ${round(up(ys[index]!))}`);
  });
  // A lone point gets a length, else it would not be seen.
  return found.length === 1 ? `M${found[0]!}m-2 0h4` : `M${found.join("L")}`;
}

/** The points of an evaluation as circles; where it has many, some of them. */
function pointsOf(
  { mark = 0, xs, ys, colour }: Curve,
  log: boolean,
  across: (value: number) => number,
  up: (value: number) => number,
  page: string,
): string[] {
  const every = Math.ceil(xs.length / POINTS);
  if (mark === 0) return [];
  return xs.flatMap((x, index) => {
    if (index % every !== 0 || (log && ys[index]! <= 0)) return [];
    const at = `cx="${round(across(x))}" cy="${round(up(ys[index]!))}"`;
    return [`<circle ${at} r="3" stroke="${colour}" fill="${mark > 1 ? page : colour}"/>`];
  });
}

function legendOf(curves: readonly Curve[]): [text: string, rows: number] {
  let left = LEFT;
  let row = 0;
  const found = curves.map((curve) => {
    const width = 34 + curve.label.length * LETTER + 16;
    if (left > LEFT && left + width > WIDTH) {
      left = LEFT;
      row += 1;
    }
    const top = HEIGHT + row * ROW + 8;
    const at = left;
    left += width;
    return (
      `<path d="M${round(at)} ${top}h28" stroke="${curve.colour}" stroke-width="2"${dashes(curve.dash)}/>` +
      (curve.mark === undefined || curve.mark === 0
        ? ""
        : `<circle cx="${round(at + 14)}" cy="${top}" r="3" stroke="${curve.colour}" ` +
          `fill="${curve.mark > 1 ? "none" : curve.colour}"/>`) +
      `<text x="${round(at + 34)}" y="${top + 4}">${escaped(curve.label)}</text>`
    );
  });
  return [found.join(""), curves.length === 0 ? 0 : row + 1];
}

function dashes(dash: readonly number[]): string {
  return dash.length === 0 ? "" : ` stroke-dasharray="${dash.join(" ")}"`;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

function escaped(words: string): string {
  const signs: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  // XML has no form at all for other control characters.
  // eslint-disable-next-line no-control-regex
  return words.replace(/[&<>"]/g, (sign) => signs[sign]!).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "�");
}
