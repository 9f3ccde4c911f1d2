/** Formats numbers, sizes, times and lists of ranks for people to read. */

/** A number with four significant digits. */
export function number(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e").replace(/-/g, "−");
  return value.toPrecision(4).replace("-", "−");
}

/** A number beside an axis, as short as it can be. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(0).replace("e+", "e");
  return String(+value.toPrecision(4));
}

/** A whole number with thousands separators. */
export function count(value: number): string {
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A size in bytes, in units of powers of 1000. */
export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]!}`;
}

/** The length of a step, given in seconds. */
export function duration(seconds: number): string {
  if (seconds < 1e-3) return `${(seconds * 1e6).toPrecision(3)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return seconds < 100 ? `${seconds.toPrecision(3)} s` : clock(seconds);
}

/** The length of a run, given in seconds: `12 s`, `2:05`, `1:02:05`. It is rounded down, as on every clock. */
export function clock(seconds: number): string {
  if (seconds < 10 && !Number.isInteger(seconds)) return `${(Math.floor(seconds * 10 + 1e-6) / 10).toFixed(1)} s`;
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  const two = (value: number): string => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** A rate per second. */
export function rate(value: number): string {
  return value >= 1000 ? count(value) : value.toPrecision(3);
}

/** How much longer than the others' a slow rank's step takes: by `more`, as a share of theirs. */
export function longer(more: number): string {
  if (more < 1) return `${(100 * more).toFixed(0)} % longer than the others'`;
  return `${(1 + more).toFixed(1)} times as long as the others'`;
}

/** Ranks as ranges: `0-3,5`. */
export function rankList(ranks: readonly number[]): string {
  const spans: [number, number][] = [];
  for (const rank of [...ranks].sort((one, other) => one - other)) {
    const last = spans[spans.length - 1];
    if (last !== undefined && rank === last[1] + 1) last[1] = rank;
    else spans.push([rank, rank]);
  }
  return spans.map(([first, end]) => (first === end ? `${first}` : `${first}-${end}`)).join(",");
}
