/**
 * The strip of ranks: each rank's state by colour and shape, its step, its pace and its resources.
 *
 * Few ranks are tiles with numbers, more are small tiles, and many are squares whose colour shows a measure that the
 * user chooses. Ranks are grouped by host if there are several. With still more ranks, the odd ones have small tiles,
 * and so has each host, which shows its ranks at a click. The strip is one tab stop; arrow keys move among ranks.
 */

import { h, icon, setAttribute, setText } from "./dom";
import type { Rank } from "./model";
import { lookOf, oddOnes, remarkOf, SHAPES, stateWords, together, type Look } from "./standing";
import { heat } from "./theme";
import { bytes, count, duration, longer } from "./format";

/** Up to FEW ranks have tiles with numbers; up to SOME have small tiles; up to ALL have squares. */
const FEW = 12;
const SOME = 48;
export const ALL = 256;

type Measure = "pace" | "memory" | "utilisation";
const MEASURES: Record<Measure, [words: string, value: (rank: Rank) => number | null]> = {
  pace: ["time per step", (rank) => rank.pace],
  memory: ["memory", (rank) => memoryOf(rank)?.used ?? null],
  utilisation: ["utilisation", (rank) => useOf(rank)],
};

/** The content of a strip: ranks, and the names of their nodes. */
export interface Shown {
  ranks: readonly (Rank & { name?: string })[];
  nodes: readonly string[];
}

interface Tile {
  button: HTMLButtonElement;
  mark: HTMLElement;
  state: HTMLElement;
  line: HTMLElement;
  use: HTMLElement;
  bar: HTMLElement;
  shown: Look | null;
}

export class RankStrip {
  readonly node = h("div", { class: "dtrain-strip", role: "group", "aria-label": "Ranks" });
  private tiles = new Map<number, Tile>();
  private layout = "";
  private measure: Measure = "pace";
  /** The host whose ranks are shown, of many hosts. */
  private open = -1;
  private again = (): void => undefined;

  constructor(private choose: (rank: number) => void) {
    this.node.addEventListener("keydown", (event) => {
      this.move(event);
    });
  }

  /** Show the ranks. `chosen` is the rank whose output is open; `apart` says how some ranks differ from the rest. */
  update(whole: Shown, chosen: number | null, apart: ReadonlyMap<number, string>): void {
    const size = whole.ranks.length;
    const kind = size <= FEW ? "few" : size <= SOME ? "some" : size <= ALL ? "many" : "folded";
    this.again = () => {
      this.update(whole, chosen, apart);
    };
    const model = kind === "folded" ? this.fold(whole, apart) : whole;
    const layout = `${kind}:${model.nodes.join("|")}:${model.ranks.map((rank) => `${rank.rank}@${rank.node}`).join()}`;
    if (layout !== this.layout) this.build(model, kind, layout);
    const longest = Math.max(...model.ranks.map((rank) => rank.pace ?? 0));
    const values = model.ranks.map(MEASURES[this.measure][1]);
    const known = values.filter((value) => value !== null);
    const low = Math.min(...known);
    const high = Math.max(...known);
    model.ranks.forEach((rank, index) => {
      const tile = this.tiles.get(rank.rank)!;
      const look = lookOf(rank);
      if (tile.shown !== look) {
        const [path, filled] = SHAPES[look];
        tile.shown = look;
        tile.mark.replaceChildren(icon(path, filled));
        tile.button.dataset.state = look;
      }
      setText(tile.state, stateWords(rank));
      const differs = apart.get(rank.rank);
      tile.button.classList.toggle("dtrain-slow", rank.slower !== null);
      tile.button.classList.toggle("dtrain-apart", differs !== undefined);
      setAttribute(tile.button, "aria-pressed", String(chosen === rank.rank));
      const step = rank.step === null ? "" : `step ${count(rank.step)}`;
      const pace = rank.pace === null ? "" : `${duration(rank.pace)}/step`;
      const memory = memoryOf(rank);
      const usage = usageOf(rank);
      if (kind === "few") {
        setText(tile.line, [step, pace].filter((part) => part !== "").join(" · "));
        const held = memory?.brief ?? "";
        setText(tile.use, [held, usage].filter((part) => part !== "").join(" · "));
      }
      if (kind === "many") {
        const value = values[index] ?? null;
        const share = value === null || high <= low ? null : (value - low) / (high - low);
        tile.button.style.setProperty("--dtrain-heat", share === null ? "transparent" : heat(share));
      } else {
        const share = longest > 0 && rank.pace !== null ? rank.pace / longest : 0;
        tile.bar.style.width = `${(100 * share).toFixed(1)}%`;
      }
      const title = [
        `${rank.name ?? `rank ${rank.rank}`}: ${stateWords(rank)}`,
        step,
        pace,
        rank.slower === null ? "" : `steps take ${longer(rank.slower)}`,
        memory === null ? "" : `${memory.words}${memory.total === null ? "" : ` of ${bytes(memory.total)}`}`,
        usage,
        differs ?? "",
        remarkOf(rank),
      ];
      const label = title.filter((part) => part !== "").join(", ");
      setAttribute(tile.button, "title", label);
      setAttribute(tile.button, "aria-label", label);
    });
  }

  /** The odd ranks, those of the host that is open, and all hosts, as if each were a rank. */
  private fold({ ranks, nodes }: Shown, apart: ReadonlyMap<number, string>): Shown {
    const odd = oddOnes(ranks, apart).map((rank) => ({ ...rank, node: 0, name: `${nodes[rank.node]!} ${rank.rank}` }));
    const here = ranks.filter((rank) => rank.node === this.open && !odd.some((one) => one.rank === rank.rank));
    const hosts = nodes.flatMap((host, node) => {
      const members = ranks.filter((rank) => rank.node === node);
      if (members.length === 0) return [];
      const { list, ...all } = together(members);
      return [
        {
          ...members[0]!,
          ...all,
          memory: null,
          workers: 0,
          gpu: null,
          cpu: null,
          slower: null,
          rank: -1 - node,
          node: 2,
          name: `${host} ${list}`,
        },
      ];
    });
    return {
      ranks: [...odd, ...here.map((rank) => ({ ...rank, node: 1 })), ...hosts],
      nodes: ["ranks to look at", nodes[this.open] ?? "", "all, by host"],
    };
  }

  private build(model: Shown, kind: string, layout: string): void {
    this.layout = layout;
    const active = document.activeElement;
    const focused = this.node.contains(active) ? Number((active as HTMLElement).dataset.rank) : NaN;
    this.tiles.clear();
    this.node.className = `dtrain-strip dtrain-strip-${kind}`;
    const groups = model.nodes.map((host, node) => {
      const members = model.ranks.filter((rank) => rank.node === node);
      const group = h("div", { class: "dtrain-node", hidden: members.length === 0 });
      if (model.nodes.length > 1) {
        const known = host === "" ? "not started" : host;
        group.append(h("span", { class: "dtrain-host", title: known }, known));
      }
      const cells = h("div", { class: "dtrain-tiles" });
      for (const rank of members) cells.append(this.tile(rank.rank, kind, rank.name));
      group.append(cells);
      return group;
    });
    this.node.replaceChildren(...groups);
    if (kind === "many") this.node.append(this.chooser());
    const again = this.tiles.get(focused)?.button;
    const stop = again ?? this.tiles.values().next().value?.button;
    if (stop !== undefined) stop.tabIndex = 0;
    again?.focus();
  }

  private tile(rank: number, kind: string, title = String(rank)): HTMLButtonElement {
    const mark = h("span", { class: "dtrain-mark" });
    const state = h("span", { class: "dtrain-state" });
    const line = h("span", { class: "dtrain-line" });
    const use = h("span", { class: "dtrain-line" });
    const bar = h("span", { class: "dtrain-pace-bar" });
    const button = h("button", { class: "dtrain-tile", type: "button", tabIndex: -1, "data-rank": String(rank) });
    const name = h("span", { class: "dtrain-name" }, kind === "few" ? `rank ${rank}` : title);
    if (kind === "many") button.append(mark);
    else if (kind !== "few") button.append(h("span", { class: "dtrain-head" }, mark, name), bar);
    else button.append(h("span", { class: "dtrain-head" }, mark, name, state), line, use, bar);
    button.addEventListener("click", () => {
      if (rank >= 0) this.choose(rank);
      else {
        this.open = this.open === -1 - rank ? -1 : -1 - rank;
        this.again();
      }
    });
    this.tiles.set(rank, { button, mark, state, line, use, bar, shown: null });
    return button;
  }

  private chooser(): HTMLElement {
    const select = h("select", { "aria-label": "Colour ranks by" });
    for (const [value, [words]] of Object.entries(MEASURES)) {
      const option = h("option", {}, words);
      option.value = value;
      select.append(option);
    }
    select.value = this.measure;
    select.addEventListener("change", () => {
      this.measure = select.value as Measure;
    });
    const scale = h("span", { class: "dtrain-scale", "aria-hidden": "true" });
    scale.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map(heat).join()})`;
    const ends = h("span", { class: "dtrain-chooser" }, "low ", scale, " high");
    return h("label", { class: "dtrain-chooser" }, "colour by ", select, ends);
  }

  private move(event: KeyboardEvent): void {
    const buttons = [...this.tiles.values()].map((tile) => tile.button);
    const at = buttons.indexOf(event.target as HTMLButtonElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    let next = -1;
    if (at < 0) return;
    if (step !== undefined) next = (at + step + buttons.length) % buttons.length;
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = buttons.length - 1;
    else return;
    event.preventDefault();
    event.stopPropagation();
    buttons[at]!.tabIndex = -1;
    buttons[next]!.tabIndex = 0;
    buttons[next]!.focus();
  }
}

export interface Memory {
  used: number;
  total: number | null;
  /** How much is in use, and by which processes. */
  words: string;
  brief: string;
}

/** The memory of its GPU; without one that of its host, which its workers use, too. */
export function memoryOf(rank: Rank): Memory | null {
  const { gpu, memory, workers, workersMemory } = rank;
  if (gpu !== null) return { used: gpu.used, total: gpu.total, words: bytes(gpu.used), brief: bytes(gpu.used) };
  if (memory === null) return null;
  const used = memory + workersMemory;
  const some = `${workers} worker${workers === 1 ? "" : "s"}`;
  return {
    used,
    total: rank.hostMemory,
    words: workers === 0 ? bytes(used) : `${bytes(memory)} + ${bytes(workersMemory)} in ${some}`,
    brief: workers === 0 ? bytes(used) : `${bytes(used)}, ${some}`,
  };
}

export function useOf(rank: Rank): number | null {
  return rank.gpu !== null ? rank.gpu.utilisation : rank.cpu;
}

/** The same in words. */
export function usageOf(rank: Rank): string {
  const use = useOf(rank);
  if (use === null) return "";
  return rank.gpu === null ? `${use.toFixed(0)} % of a core` : `GPU ${use.toFixed(0)} %`;
}
