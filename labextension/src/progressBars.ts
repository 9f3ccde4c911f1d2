/** Progress bars, one for each loop: filled to the mean over ranks, with the spread from slowest to fastest rank. */

import { h, setAttribute, setText } from "./dom";
import type { Bar, RunModel } from "./model";
import { clock, count, rate } from "./format";

interface Row {
  node: HTMLElement;
  name: HTMLElement;
  track: HTMLElement;
  done: HTMLElement;
  spread: HTMLElement;
  words: HTMLElement;
}

export class ProgressBars {
  readonly node = h("div", { class: "dtrain-bars" });
  private rows = new Map<number, Row>();

  update(model: RunModel): void {
    for (const bar of model.bars) this.show(bar);
    for (const [number, row] of this.rows) {
      if (!model.bars.some((bar) => bar.number === number)) {
        row.node.remove();
        this.rows.delete(number);
      }
    }
    this.node.hidden = this.rows.size === 0;
  }

  private show(bar: Bar): void {
    let row = this.rows.get(bar.number);
    if (row === undefined) {
      row = makeRow();
      this.rows.set(bar.number, row);
      this.node.append(row.node);
    }
    const done = bar.ranks.map((rank) => rank.done);
    const total = Math.max(...bar.ranks.map((rank) => rank.total ?? 0));
    const mean = done.reduce((sum, one) => sum + one, 0) / Math.max(1, done.length);
    const low = Math.min(...done);
    const high = Math.max(...done);
    const ended = bar.ranks.every((rank) => rank.ended);
    const rates = bar.ranks.map((rank) => rank.rate).filter((one) => one !== null);
    const speed = rates.reduce((sum, one) => sum + one, 0) / Math.max(1, rates.length);
    const share = (value: number): string => `${Math.min(100, Math.max(0, (100 * value) / total)).toFixed(2)}%`;
    setText(row.name, bar.name === "" ? "progress" : bar.name);
    row.node.classList.toggle("dtrain-ended", ended);
    row.track.classList.toggle("dtrain-endless", total <= 0);
    if (total > 0) {
      row.done.style.width = share(mean);
      row.spread.style.left = share(low);
      row.spread.style.width = `calc(${share(high)} - ${share(low)})`;
      setAttribute(row.track, "aria-valuenow", Math.round((100 * mean) / total).toString());
    } else {
      setAttribute(row.track, "aria-valuenow", null);
    }
    const parts = [
      total > 0
        ? `${Math.floor((100 * mean) / total)} % · ${count(Math.round(mean))}/${count(total)}`
        : count(Math.round(mean)),
    ];
    if (rates.length > 0 && speed > 0) {
      parts.push(`${rate(speed)}/s`);
      if (total > 0 && !ended && low < total) parts.push(`${clock((total - low) / speed)} left`);
    }
    if (high - low > Math.max(1, 0.02 * total)) {
      const last = bar.ranks.find((rank) => rank.done === low)!;
      parts.push(`rank ${last.rank} at ${count(low)}`);
    }
    setText(row.words, parts.join(" · "));
    setAttribute(row.track, "aria-label", `${row.name.textContent}: ${row.words.textContent}`);
  }
}

function makeRow(): Row {
  const name = h("span", { class: "dtrain-bar-name" });
  const done = h("span", { class: "dtrain-bar-done" });
  const spread = h("span", { class: "dtrain-bar-spread" });
  const track = h(
    "span",
    { class: "dtrain-bar", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" },
    done,
    spread,
  );
  const words = h("span", { class: "dtrain-bar-words" });
  return { node: h("div", { class: "dtrain-bar-row" }, name, track, words), name, track, done, spread, words };
}
