/**
 * The points of one metric on one rank, in logging order, in typed arrays that grow.
 *
 * A column holds at most `room` points. When it is full, it keeps three of each four points at most: the lowest, the
 * highest, and the first that is NaN or infinite; and it keeps the newest point.
 */
export class Column {
  steps = new Float64Array(64);
  values = new Float32Array(64);
  length = 0;
  /** Whether steps never decrease. */
  sorted = true;
  /** Indices of the first values that are NaN or infinite, at most 1,000. */
  nonFinite: number[] = [];

  constructor(private room = 1 << 20) {}

  /** Append points; copies both arrays. */
  append(steps: ArrayLike<number>, values: ArrayLike<number>): void {
    const count = Math.min(steps.length, values.length);
    this.reserve(this.length + count);
    for (let index = 0; index < count; index += 1) {
      const at = this.length + index;
      const step = steps[index]!;
      const value = values[index]!;
      if (at > 0 && step < this.steps[at - 1]!) this.sorted = false;
      this.steps[at] = step;
      this.values[at] = value;
      if (!Number.isFinite(value) && this.nonFinite.length < MAX_NON_FINITE) this.nonFinite.push(at);
    }
    this.length += count;
    if (this.length > this.room) this.thin();
  }

  /** The newest value, or NaN. */
  get last(): number {
    return this.length > 0 ? this.values[this.length - 1]! : NaN;
  }

  /** The newest step, or NaN. */
  get lastStep(): number {
    return this.length > 0 ? this.steps[this.length - 1]! : NaN;
  }

  /** The index of the first point at or after `step`; valid only for sorted columns. */
  find(step: number): number {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle]! < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The point nearest to `step`; null if the column is empty. */
  at(step: number): { step: number; value: number } | null {
    if (this.length === 0) return null;
    let index = 0;
    if (this.sorted) {
      index = Math.min(this.find(step), this.length - 1);
      if (index > 0 && step - this.steps[index - 1]! < this.steps[index]! - step) index -= 1;
    } else {
      let best = Infinity;
      for (let other = 0; other < this.length; other += 1) {
        const distance = Math.abs(this.steps[other]! - step);
        if (distance <= best) {
          best = distance;
          index = other;
        }
      }
    }
    return { step: this.steps[index]!, value: this.values[index]! };
  }

  private reserve(count: number): void {
    if (count <= this.steps.length) return;
    const size = Math.max(count, 2 * this.steps.length);
    const steps = new Float64Array(size);
    const values = new Float32Array(size);
    steps.set(this.steps.subarray(0, this.length));
    values.set(this.values.subarray(0, this.length));
    this.steps = steps;
    this.values = values;
  }

  private thin(): void {
    let kept = 0;
    const keep = (index: number): void => {
      this.steps[kept] = this.steps[index]!;
      this.values[kept] = this.values[index]!;
      kept += 1;
    };
    for (let first = 0; first < this.length; first += 4) {
      const end = Math.min(first + 4, this.length);
      let low = -1;
      let high = -1;
      let nonFinite = -1;
      for (let index = first; index < end; index += 1) {
        const value = this.values[index]!;
        if (!Number.isFinite(value)) {
          if (nonFinite < 0) nonFinite = index;
        } else {
          if (low < 0 || value < this.values[low]!) low = index;
          if (high < 0 || value > this.values[high]!) high = index;
        }
      }
      // The newest point stays: a chart shows its value, and which rank is how far.
      const newest = end === this.length ? end - 1 : -1;
      const chosen = [...new Set([low, high, nonFinite, newest])].filter((index) => index >= 0).sort((a, b) => a - b);
      chosen.forEach(keep);
    }
    this.length = kept;
    this.nonFinite = [];
    for (let index = 0; index < kept && this.nonFinite.length < MAX_NON_FINITE; index += 1) {
      if (!Number.isFinite(this.values[index]!)) this.nonFinite.push(index);
    }
  }
}

const MAX_NON_FINITE = 1000;
