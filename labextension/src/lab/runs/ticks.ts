/** Round numbers for the axes of a picture. */

/** Round numbers from `low` to `high`, about `count` of them. */
export function ticks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough)!;
  const found: number[] = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
    found.push(Number((index * step).toPrecision(12)));
  }
  return found;
}

/** Powers of ten between `low` and `high`, which are positive; where they are too few, 2 and 5 times them as well. */
export function logTicks(low: number, high: number): number[] {
  const powers: number[] = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) powers.push(Number(`1e${power}`));
  const among = (factors: number[]): number[] =>
    powers
      .flatMap((power) => factors.map((factor) => Number((factor * power).toPrecision(12))))
      .filter((value) => value >= low * 0.999999 && value <= high * 1.000001);
  const few = among([1]);
  if (few.length > 8) return few.filter((_, index) => index % Math.ceil(few.length / 8) === 0);
  return few.length >= 3 ? few : among([1, 2, 5]).length >= 2 ? among([1, 2, 5]) : ticks(low, high, 4);
}
