/** The panel of a run, live or saved: summary, buttons, ranks, progress, charts, and a drawer for stacks and output. */

import type { Range } from "./layout";
import { ProgressBars } from "./progressBars";
import { Chart } from "./chart";
import type { GanttCharts } from "./gantt";
import { explained, h, setAttribute, setText } from "./dom";
import { outliers } from "./anomalies";
import { endingOfModel } from "./outcome";
import type { PanelProfile } from "./generated";
import { isMain, type Metric, type RunModel } from "./model";
import { PromptRows, type Answerer } from "./prompts";
import { RankStrip } from "./rankStrip";
import { Steering, type Steerer } from "./steering";
import type { StepTimeView } from "./stepTime";
import { onThemeChange, themeOf, type Theme } from "./theme";
import { clock, count, duration, longer, rankList, rate } from "./format";

export type Question = "interrupt" | "stacks" | "output" | "profile";

export interface Answer {
  text: string;
  /** The number of characters that were cut off before `text`. */
  cut?: number;
  /** The answer to "profile". */
  profile?: PanelProfile | undefined;
  /** Where the trace of that can be downloaded; empty if it cannot. */
  address?: string;
}

/** Requests during a run. A rejected promise's message says what to do instead. */
export interface Questions {
  /** `tell` gets what is going on until the answer comes, as sentences. */
  ask(question: Question, rank?: number, tell?: (words: string) => void): Promise<Answer>;
  /** Answers what ranks ask; absent where nothing can. */
  readonly prompts?: Answerer;
  /** Steers the loop; absent where nothing can. */
  readonly steering?: Steerer;
}

/** With up to this many ranks, each has a line of its own by default. */
const LINES = 8;

/** The number of charts that are shown by default. */
const OPEN = 6;

/**
 * A frame that takes more milliseconds than SLOW is slow; nothing is drawn for REST times its length after it, but at
 * most for LONGEST: on a busy machine a frame may take seconds, and the panel must not fall behind the sidebar.
 */
const SLOW = 25;
const REST = 3;
const LONGEST = 600;

export class RunPanel {
  private summary = h("span", { class: "dtrain-summary" });
  private badge = h("span", { class: "dtrain-badge" });
  private interruptButton = h("button", { class: "dtrain-button", type: "button" }, "Interrupt");
  private stacksButton = h("button", { class: "dtrain-button", type: "button" }, "Stacks");
  private profileButton = h("button", { class: "dtrain-button", type: "button" }, "Profile");
  private notice = h("div", { class: "dtrain-notice", role: "status", hidden: true });
  private reading = h("div", { class: "dtrain-reading" });
  private fault = h("div", { class: "dtrain-reading dtrain-fault" });
  /** The warnings that it shows, as text. */
  private faults = "[]";
  private prompts = new PromptRows(() => this.questions?.prompts ?? null);
  private steering = new Steering(() => this.questions?.steering ?? null);
  private strip: RankStrip;
  private bars = new ProgressBars();
  /** Where the time of steps goes: what draws it is loaded at the first step that tells. */
  private stepTime: StepTimeView | null | "asked" = null;
  private spent = h("div", {});
  private tools = h("div", { class: "dtrain-tools", hidden: true });
  private toggles = h("span", { class: "dtrain-toggles" });
  private reset = h("button", { class: "dtrain-small", type: "button", hidden: true }, "show all steps");
  private main = h("div", { class: "dtrain-charts" });
  private side = h("div", { class: "dtrain-charts" });
  private more = h("details", { class: "dtrain-more", hidden: true }, h("summary", {}), this.side);
  /** Few runs have pipelines: what draws them is loaded for the first one. */
  private gantts: GanttCharts | null | "asked" = null;
  private below = h("div", {});
  private drawer = h("div", { class: "dtrain-drawer", hidden: true });
  private charts = new Map<string, Chart>();
  private shown = new Set<number>();
  private touched = false;
  private smoothing = 0;
  private range: Range | null = null;
  private chosen: number | null = null;
  private pending = 0;
  private resting = 0;
  private rested = 0;
  private theme: Theme;
  private ends: (() => void)[] = [];
  private questions: Questions | null = null;
  private paused = false;
  private notices = 0;

  constructor(
    private root: HTMLElement,
    private model: RunModel,
    /** Leave out summary, buttons and ranks, for places that show them elsewhere. */
    chartsOnly = false,
  ) {
    root.classList.add("dtrain-run");
    this.strip = new RankStrip((rank) => {
      this.choose(rank);
    });
    this.interruptButton.title = "Interrupt the cell on every rank; variables are kept";
    this.stacksButton.title = "Show where every rank is now";
    this.profileButton.title = "Record the next 5 steps on all ranks together; the loop goes on";
    this.interruptButton.addEventListener("click", () => {
      void this.interrupt();
    });
    this.stacksButton.addEventListener("click", () => {
      void this.open("Stacks", "stacks");
    });
    this.profileButton.addEventListener("click", () => {
      void this.profile();
    });
    this.reset.addEventListener("click", () => {
      this.zoom(null);
    });
    this.tools.append(this.toggles, this.slider(), this.reset);
    const head = [
      h(
        "div",
        { class: "dtrain-header" },
        this.badge,
        this.summary,
        this.stacksButton,
        this.profileButton,
        this.interruptButton,
      ),
      this.notice,
      this.steering.node,
      this.prompts.node,
      this.reading,
      this.fault,
      this.strip.node,
    ];
    root.replaceChildren(
      ...(chartsOnly ? [] : head),
      this.bars.node,
      ...(chartsOnly ? [] : [this.spent]),
      this.tools,
      this.main,
      this.more,
      ...(chartsOnly ? [this.spent] : []),
      this.below,
      this.drawer,
    );
    this.theme = themeOf(root);
    this.more.addEventListener("toggle", () => {
      this.schedule();
    });
    const observer = new ResizeObserver(() => {
      this.schedule();
    });
    observer.observe(root);
    this.ends = [
      model.listen(() => {
        this.scheduleSoon();
      }),
      onThemeChange(() => {
        // The theme's style sheets may still be loading: redraw now, and again when they must have arrived.
        this.schedule();
        setTimeout(() => {
          this.schedule();
        }, 500);
      }),
      () => {
        observer.disconnect();
      },
    ];
    this.setQuestions(null);
    this.schedule();
  }

  /** Set where requests go; null hides the buttons. */
  setQuestions(questions: Questions | null): void {
    this.questions = questions;
    this.schedule();
  }

  /** Say whether nothing brings news of a run that has not ended in what is shown. */
  setPaused(paused: boolean): void {
    this.paused = paused;
    this.schedule();
  }

  destroy(): void {
    cancelAnimationFrame(this.pending);
    clearTimeout(this.resting);
    for (const end of this.ends) end();
    for (const chart of this.charts.values()) chart.destroy();
    if (this.stepTime !== "asked") this.stepTime?.destroy();
    this.prompts.destroy();
    this.root.replaceChildren();
  }

  /** Draw in the next frame, in response to a person's action. */
  private schedule(): void {
    if (this.pending !== 0) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      const began = performance.now();
      this.draw();
      // The browser calls this after it has painted the frame.
      requestAnimationFrame(() => {
        const now = performance.now();
        this.rested = now + (now - began > SLOW ? Math.min(LONGEST, REST * (now - began)) : 0);
      });
    });
  }

  /** Draw soon, in response to a message. If the last frame was slow, wait, so that the page stays responsive. */
  private scheduleSoon(): void {
    if (this.pending !== 0 || this.resting !== 0) return;
    const wait = this.rested - performance.now();
    if (wait <= 0) {
      this.schedule();
      return;
    }
    this.resting = window.setTimeout(() => {
      this.resting = 0;
      this.schedule();
    }, wait);
  }

  /** Apply the page's theme, which can be read only once the panel is on the page. */
  private retheme(): void {
    const theme = themeOf(this.root);
    if (theme.text === this.theme.text && theme.dark === this.theme.dark) return;
    this.theme = theme;
    for (const chart of this.charts.values()) chart.setTheme(theme);
    this.toggles.replaceChildren();
  }

  private draw(): void {
    const { model } = this;
    this.retheme();
    const metrics = model.ordered;
    if (!this.touched && model.ranks.length <= LINES && this.shown.size !== model.ranks.length) {
      this.shown = new Set(model.ranks.map((rank) => rank.rank));
    }
    const apart = new Map<number, string>();
    const mains = metrics.filter((metric) => isMain(metric.name));
    const front = (mains.length > 0 ? mains : metrics).slice(0, OPEN);
    const lossLike = front.filter((metric) => metric.name.toLowerCase().includes("loss"));
    for (const metric of lossLike) {
      for (const [rank, words] of outliers(metric)) apart.set(rank, `${metric.name} ${words}`);
    }
    this.showSummary();
    const asks = model.outcome === "running" && !this.paused;
    this.prompts.update(model.run, asks ? model.asked : "", asks ? model.prompts : []);
    this.steering.update(model, asks);
    this.strip.update(model, this.chosen, apart);
    this.bars.update(model);
    this.tools.hidden = metrics.length === 0;
    this.reset.hidden = this.range === null;
    this.drawToggles();
    const rest = metrics.filter((metric) => !front.includes(metric));
    this.arrangeCharts(this.main, front);
    this.more.hidden = rest.length === 0 && model.leftOut === 0;
    const words = rest.map((metric) => metric.name);
    const names = words.length > 4 ? `${words.slice(0, 4).join(", ")}, …` : words.join(", ");
    const left = model.leftOut > 0 ? `; ${count(model.leftOut)} only in Run.metrics` : "";
    setText(this.more.firstElementChild!, `${count(rest.length)} more: ${names}${left}`);
    if (this.more.open) this.arrangeCharts(this.side, rest);
    const options = {
      shown: this.shown,
      smoothing: this.smoothing,
      range: this.range,
      marks: model.marks,
      ended: model.outcome !== "running",
    };
    const visible = this.more.open ? [...front, ...rest] : front;
    this.drawStepTime();
    this.drawPipelines();
    for (const metric of visible) this.charts.get(metric.name)!.update(metric, model.version, options);
  }

  private drawStepTime(): void {
    const { model, theme, range } = this;
    if (this.stepTime === null && model.stepTime !== null) {
      this.stepTime = "asked";
      void import("./stepTime").then(({ StepTimeView }) => {
        if (this.spent.parentNode === null) return; // destroyed meanwhile
        this.stepTime = new StepTimeView(
          (chosen) => {
            this.zoom(chosen);
          },
          () => {
            this.schedule();
          },
        );
        this.spent.append(this.stepTime.node);
        this.schedule();
      });
    } else if (this.stepTime !== null && this.stepTime !== "asked") {
      this.stepTime.update(model.stepTime, model.outcome !== "running", { theme, range, marks: model.marks });
    }
  }

  private drawPipelines(): void {
    const { pipelines } = this.model;
    if (this.gantts === null && pipelines.length > 0) {
      this.gantts = "asked";
      void import("./gantt").then(({ GanttCharts }) => {
        if (this.below.parentNode === null) return; // destroyed meanwhile
        this.gantts = new GanttCharts();
        this.below.append(this.gantts.node);
        this.schedule();
      });
    } else if (this.gantts !== null && this.gantts !== "asked") {
      this.gantts.update(pipelines, this.root.clientWidth);
    }
  }

  /** Put the charts of `metrics` into `place`, in order. */
  private arrangeCharts(place: HTMLElement, metrics: Metric[]): void {
    metrics.forEach((metric, index) => {
      let chart = this.charts.get(metric.name);
      if (chart === undefined) {
        chart = new Chart(metric, this.theme, (range) => {
          this.zoom(range);
        });
        this.charts.set(metric.name, chart);
      }
      if (place.children[index] !== chart.node) place.insertBefore(chart.node, place.children[index] ?? null);
    });
    place.classList.toggle("dtrain-single", metrics.length === 1);
  }

  private showSummary(): void {
    const { model } = this;
    const going = model.outcome === "running";
    const held = going && !this.paused ? model.pausedAt : null;
    const { outcome, words, title } =
      going && this.paused
        ? { outcome: "paused", words: "not finished", title: "The run went on after this was saved." }
        : endingOfModel(model);
    setText(this.badge, words);
    setAttribute(this.badge, "title", title);
    this.badge.dataset.outcome = outcome;
    this.interruptButton.hidden = this.questions === null || !going;
    this.stacksButton.hidden = this.questions === null || !going;
    this.profileButton.hidden = this.questions === null || !going;
    const ranks = model.ranks.map((rank) => rank.rank);
    const parts = [
      `Run ${model.run}`,
      ...(held === null ? [] : [`Paused after step ${count(held)}`]),
      ranks.length === model.size
        ? `${count(model.size)} rank${model.size === 1 ? "" : "s"}`
        : `rank${ranks.length === 1 ? "" : "s"} ${rankList(ranks)}`,
      clock(this.paused ? model.elapsed : model.clock),
    ];
    if (model.step !== null) parts.push(`step ${count(model.step)}`);
    const { steps, samples } = model.speed;
    if (steps !== null) parts.push(`${rate(steps)} steps/s`, `${duration(1 / steps)}/step`);
    if (samples !== null) parts.push(`${rate(samples)} samples/s`);
    for (const { rank, slower } of model.ranks) {
      if (slower !== null) parts.push(`steps of rank ${rank} take ${longer(slower)}`);
    }
    if (model.thinned) parts.push("points thinned; Run.metrics has all of them");
    setText(this.summary, parts.join(" · "));
    setText(this.reading, model.reading.flatMap(([words, fault]) => (fault === 0 ? words : [])).join("\n"));
    const faults = model.reading.filter(([, fault]) => fault === 1);
    const key = JSON.stringify(faults);
    if (this.faults !== key) {
      this.faults = key;
      this.fault.replaceChildren(
        ...faults.flatMap(([words, , anchor], index) => [
          `${index > 0 ? "\n" : ""}${words}`,
          ...(anchor ? [" ", explained(anchor)] : []),
        ]),
      );
    }
  }

  private drawToggles(): void {
    const { model, theme } = this;
    if (model.ranks.length < 2) {
      this.toggles.replaceChildren();
      return;
    }
    const many = model.ranks.length > 16;
    const ranks = many ? [...this.shown].sort((one, other) => one - other) : model.ranks.map((rank) => rank.rank);
    const key = ranks.join();
    if (this.toggles.dataset.ranks !== key || this.toggles.childElementCount === 0) {
      this.toggles.dataset.ranks = key;
      const swatch = (name: string, colour: string): HTMLElement => {
        const mark = h("span", { class: `dtrain-swatch dtrain-swatch-${name}` });
        mark.style.background = colour;
        return mark;
      };
      const legend = h(
        "span",
        { class: "dtrain-legend" },
        swatch("mean", theme.mean),
        "mean ",
        swatch("band", theme.band),
        "lowest to highest",
      );
      const buttons = ranks.map((rank) => {
        const dot = swatch("rank", theme.rank(rank));
        const button = h(
          "button",
          { class: "dtrain-small", type: "button", "data-rank": String(rank) },
          dot,
          String(rank),
        );
        button.title = `Show or hide the line of rank ${rank}`;
        button.addEventListener("click", () => {
          this.toggle(rank);
        });
        return button;
      });
      const hint = many && ranks.length === 0 ? ["choose a rank above to see its line"] : [];
      this.toggles.replaceChildren(legend, ...buttons, ...hint);
    }
    for (const button of this.toggles.querySelectorAll("button")) {
      setAttribute(button, "aria-pressed", String(this.shown.has(Number(button.dataset.rank))));
    }
  }

  private toggle(rank: number): void {
    this.touched = true;
    if (!this.shown.delete(rank)) this.shown.add(rank);
    this.shown = new Set(this.shown);
    this.schedule();
  }

  private zoom(range: Range | null): void {
    this.range = range;
    this.schedule();
  }

  private slider(): HTMLElement {
    const input = h("input", { type: "range", "aria-label": "smoothing" });
    input.min = "0";
    input.max = "0.99";
    input.step = "0.01";
    input.value = "0";
    input.addEventListener("input", () => {
      this.smoothing = Number(input.value);
      this.schedule();
    });
    return h("label", { class: "dtrain-smoothing" }, "smoothing", input);
  }

  /** Select a rank: show its line and, if the kernel can be asked, its output. */
  private choose(rank: number): void {
    if (this.chosen === rank) {
      this.closeDrawer();
      return;
    }
    this.chosen = rank;
    if (!this.shown.has(rank)) this.toggle(rank);
    this.schedule();
    if (this.questions !== null) void this.open(`Output of rank ${rank}`, "output", rank);
  }

  private closeDrawer(): void {
    this.chosen = null;
    this.drawer.hidden = true;
    this.schedule();
  }

  private async interrupt(): Promise<void> {
    if (this.questions === null) return;
    this.interruptButton.disabled = true;
    try {
      await this.questions.ask("interrupt");
      this.showNotice("Interrupted. Ranks stop as soon as they can.");
    } catch (error) {
      this.showNotice((error as Error).message);
    } finally {
      this.interruptButton.disabled = false;
    }
  }

  /** Where requests go; where that is nowhere, null, and a notice says why. `nothing`: what a cell that has ended lacks. */
  private whom(nothing: string): Questions | null {
    if (this.questions === null) {
      const going = this.model.outcome === "running";
      this.showNotice(
        going ? "Nobody can be asked about this cell now: try again in a moment." : `The cell has ended: ${nothing}.`,
      );
    }
    return this.questions;
  }

  /** Request a text and show it in the drawer. */
  private async open(title: string, question: Question, rank?: number): Promise<void> {
    const questions = this.whom("there is nothing to refresh");
    if (questions === null) return;
    let answer: Answer;
    try {
      answer = await questions.ask(question, rank);
    } catch (error) {
      this.showNotice((error as Error).message);
      return;
    }
    const text = h("pre", { tabIndex: 0 }, plain(answer.text === "" ? "(nothing yet)" : answer.text));
    const cut = answer.cut !== undefined && answer.cut > 0 ? ` (last part; Run.text(${rank ?? 0}) has all of it)` : "";
    this.fillDrawer(title + cut, "refresh", () => void this.open(title, question, rank), text);
    text.scrollTop = text.scrollHeight;
  }

  /** Have some steps recorded, and show what they say in the drawer. */
  private async profile(): Promise<void> {
    if (this.profileButton.disabled) return; // one is under way
    const questions = this.whom("there is nothing to profile");
    if (questions === null) return;
    const asker = document.activeElement;
    const ours = asker === this.profileButton || this.drawer.contains(asker);
    this.profileButton.disabled = true;
    const tell = (words: string): void => {
      this.showNotice(words, null);
    };
    try {
      tell("Profiling the next 5 steps. The loop goes on.");
      const asked = questions.ask("profile", undefined, tell);
      const [{ profileNode }, { profile, address }] = await Promise.all([import("./profile"), asked]);
      this.notice.hidden = true;
      if (profile === undefined) return;
      this.chosen = null;
      // A person who is at work elsewhere meanwhile stays there.
      const focused = document.activeElement ?? document.body;
      const around = focused.contains(this.root);
      const inside = this.root.contains(focused);
      // A button that is disabled or replaced has lost the focus.
      const lost = this.drawer.contains(focused) || (ours && (around || focused === this.profileButton));
      const node = profileNode(profile, address ?? "");
      this.fillDrawer("Profile", "again", () => void this.profile(), node);
      if (lost) node.focus({ preventScroll: true });
      if (around || inside) this.drawer.scrollIntoView({ block: "nearest" });
      this.showNotice("The profile is below the charts.");
      this.schedule();
    } catch (error) {
      this.showNotice((error as Error).message);
    } finally {
      this.profileButton.disabled = false;
    }
  }

  /** `again`: the words and the action of the button that asks once more. */
  private fillDrawer(title: string, again: string, ask: () => void, content: HTMLElement): void {
    const button = (words: string, act: () => void): HTMLElement => {
      const found = h("button", { class: "dtrain-small", type: "button" }, words);
      found.addEventListener("click", act);
      return found;
    };
    const close = button("close", () => {
      this.closeDrawer();
    });
    this.drawer.replaceChildren(h("div", { class: "dtrain-drawer-head" }, title, button(again, ask), close), content);
    this.drawer.hidden = false;
  }

  /** Show a notice for some milliseconds; null: until the next. */
  private showNotice(words: string, lasts: number | null = 12_000): void {
    setText(this.notice, words);
    this.notice.hidden = false;
    this.notices += 1;
    const mine = this.notices;
    if (lasts === null) return;
    setTimeout(() => {
      if (mine === this.notices) this.notice.hidden = true;
    }, lasts);
  }
}

/** Text as a terminal shows it in the end: without colour codes, and with the last version of each redrawn line. */
export function plain(text: string): string {
  return text
    .replace(/\u001b\[[0-9;?]*[A-Za-z]/g, "") // eslint-disable-line no-control-regex
    .replace(/\r\n/g, "\n")
    .split("\n")
    .map((line) => (line.includes("\r") ? (line.replace(/\r+$/, "").split("\r").pop() ?? "") : line))
    .join("\n");
}
