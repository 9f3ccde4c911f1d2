import { afterEach, describe, expect, it, vi } from "vitest";
import type { RankRow, RunDocument } from "../src/runDocument";
import { RunModel } from "../src/model";
import { plain, RunPanel, type Answer, type Question, type Questions } from "../src/panel";
import { bytes, clock, count, duration, number, rankList } from "../src/format";

function run(parts: Partial<RunDocument>): RunDocument {
  const ranks: RankRow[] = [
    [0, 0, "running", 12, 1e9],
    [1, 0, "error", 9, 2e9],
  ];
  return {
    version: 1,
    run: 7,
    size: 2,
    outcome: "running",
    elapsed: 75,
    nodes: ["host"],
    ranks,
    words: {},
    bars: [],
    metrics: [],
    ...parts,
  };
}

async function shown(document: RunDocument): Promise<{ root: HTMLElement; panel: RunPanel; model: RunModel }> {
  const root = window.document.createElement("div");
  window.document.body.append(root);
  const model = new RunModel();
  model.load(document);
  const panel = new RunPanel(root, model);
  await new Promise((done) => requestAnimationFrame(done));
  await new Promise((done) => requestAnimationFrame(done));
  return { root, panel, model };
}

afterEach(() => {
  document.body.replaceChildren();
});

describe("a panel", () => {
  it("says that it draws only some of the logged points", async () => {
    const { root } = await shown(run({ thinned: true }));
    expect(root.querySelector(".dtrain-summary")!.textContent).toContain("points thinned; Run.metrics has all of them");
  });

  it("shows how the ranks read their data, and warns where it is wrong", async () => {
    const batch = "Global batch 64 = 2 replicas x 32 samples; 12 iterations an epoch";
    const same = "Ranks 0-1 read the same data and repeat each other's work.";
    const { root, model } = await shown(
      run({
        reading: [
          [batch, 0],
          [same, 1, "same-data"],
        ],
      }),
    );
    const lines = [...root.querySelectorAll(".dtrain-reading")];
    expect(lines.map((line) => line.textContent)).toEqual([batch, `${same} What this means`]);
    expect(root.querySelector<HTMLAnchorElement>(".dtrain-fault a")!.href).toMatch(/docs\/notices\.md#same-data$/);
    expect(lines.map((line) => line.classList.contains("dtrain-fault"))).toEqual([false, true]);
    model.update(run({ reading: [] }));
    await vi.waitFor(() => {
      expect(lines.map((line) => line.textContent)).toEqual(["", ""]);
    });
  });

  it("shows the state of the run and of its ranks", async () => {
    const { root } = await shown(run({}));
    expect(root.querySelector(".dtrain-summary")!.textContent).toBe("Run 7 · 2 ranks · 1:15 · step 12");
    const tiles = [...root.querySelectorAll(".dtrain-tile")];
    expect(tiles.map((tile) => tile.getAttribute("aria-label"))).toEqual([
      "rank 0: running, step 12, 1.0 GB",
      "rank 1: error, step 9, 2.0 GB",
    ]);
  });

  it("says that the run is paused, as long as it is", async () => {
    const { root, model } = await shown(run({ paused: 1200 }));
    const badge = root.querySelector<HTMLElement>(".dtrain-badge")!;
    expect([badge.textContent, badge.dataset.outcome]).toEqual(["paused", "paused"]);
    expect(root.querySelector(".dtrain-summary")!.textContent).toContain("Run 7 · Paused after step 1,200 · 2 ranks");
    model.update(run({}));
    await vi.waitFor(() => {
      expect(badge.textContent).toBe("running");
    });
    expect(root.querySelector(".dtrain-summary")!.textContent).not.toContain("Paused");
  });

  it("hides parts that have nothing to show", async () => {
    const { root } = await shown(run({}));
    const hidden = (name: string): boolean => root.querySelector<HTMLElement>(name)!.hidden;
    expect([".dtrain-tools", ".dtrain-bars", ".dtrain-more", ".dtrain-drawer", ".dtrain-notice"].map(hidden)).toEqual(
      Array(5).fill(true),
    );
  });

  it("inserts a rank's words into the page as text", async () => {
    const words = { 1: "<img src=x onerror=alert(1)>" };
    const evil = "<b>bold</b>";
    const { root } = await shown(
      run({
        words,
        nodes: [evil, "b"],
        bars: [[1, evil, [[0, 1, 2, null, 0]]]],
        metrics: [{ name: evil, series: [] }],
      }),
    );
    expect(root.querySelector("img")).toBeNull();
    expect(root.querySelector("b")).toBeNull();
    expect(root.textContent).toContain(evil);
  });

  it("shows one bar for a loop, and names the rank that is behind", async () => {
    const bars: RunDocument["bars"] = [
      [
        1,
        "train",
        [
          [0, 60, 100, 10, 0],
          [1, 20, 100, 10, 0],
        ],
      ],
    ];
    const { root } = await shown(run({ bars }));
    expect(root.querySelector(".dtrain-bar-words")!.textContent).toBe(
      "40 % · 40/100 · 10.0/s · 8 s left · rank 1 at 20",
    );
    expect(root.querySelector("[role=progressbar]")!.getAttribute("aria-valuenow")).toBe("40");
  });

  it("has buttons only while the kernel can be asked, and shows the answer or the error", async () => {
    const { root, panel } = await shown(run({}));
    const button = root.querySelector<HTMLButtonElement>(".dtrain-button")!;
    expect(button.hidden).toBe(true);
    const ask = vi.fn((question: Question) =>
      question === "stacks" ? Promise.resolve({ text: "rank 0: idle" }) : Promise.reject(new Error("press ■")),
    );
    panel.setQuestions({ ask });
    const [stacks, , interrupt] = [...root.querySelectorAll<HTMLButtonElement>(".dtrain-button")];
    stacks!.click();
    await vi.waitFor(() => {
      expect(root.querySelector("pre")!.textContent).toBe("rank 0: idle");
    });
    interrupt!.click();
    await vi.waitFor(() => {
      expect(root.querySelector(".dtrain-notice")!.textContent).toBe("press ■");
    });
    expect(ask.mock.calls.map((call) => call[0])).toEqual(["stacks", "interrupt"]);
  });

  it("says how far a profile is, and shows it below; a refusal is a notice, and the button works again", async () => {
    const { root, panel } = await shown(run({}));
    const profile = { path: "/w/p.json.gz", file: "p.json.gz", tables: [], remarks: ["100% matched."] };
    let answer: (answer: Answer) => void = () => undefined;
    const ask = vi
      .fn<Questions["ask"]>()
      .mockImplementationOnce((_, __, tell) => {
        tell!("Recording 5 steps from step 13 on.");
        return new Promise((done) => {
          answer = done;
        });
      })
      .mockRejectedValueOnce(new Error("Nothing runs on ranks 0-1."));
    panel.setQuestions({ ask });
    await vi.waitFor(() => {
      expect(root.querySelector<HTMLElement>(".dtrain-button")!.hidden).toBe(false);
    });
    const button = [...root.querySelectorAll<HTMLButtonElement>(".dtrain-button")].find(
      (one) => one.textContent === "Profile",
    )!;
    const notice = root.querySelector<HTMLElement>(".dtrain-notice")!;
    button.click();
    expect([button.disabled, notice.textContent, notice.hidden]).toEqual([
      true,
      "Recording 5 steps from step 13 on.",
      false,
    ]);
    answer({ text: "", profile, address: "/files/p.json.gz" });
    await vi.waitFor(() => {
      expect(root.querySelector(".dtrain-profile a")!.getAttribute("href")).toBe("/files/p.json.gz");
    });
    expect([button.disabled, notice.textContent]).toEqual([false, "The profile is below the charts."]);
    const [again] = [...root.querySelectorAll<HTMLButtonElement>(".dtrain-drawer button")];
    again!.click();
    await vi.waitFor(() => {
      expect([button.disabled, notice.textContent]).toEqual([false, "Nothing runs on ranks 0-1."]);
    });
    expect(ask.mock.calls.map((call) => call[0])).toEqual(["profile", "profile"]);
  });

  it("asks for one profile at a time, and says so when there is nobody left to ask", async () => {
    const { root, panel, model } = await shown(run({}));
    const { ask, answer } = profiler();
    panel.setQuestions({ ask });
    press(root, "Profile");
    answer();
    await arrived(root);
    press(root, "again");
    press(root, "again");
    answer();
    await arrived(root);
    expect(ask).toHaveBeenCalledTimes(2);
    const notice = root.querySelector<HTMLElement>(".dtrain-notice")!;
    panel.setQuestions(null);
    press(root, "again");
    expect(notice.textContent).toBe("Nobody can be asked about this cell now: try again in a moment.");
    model.update(run({ outcome: "ok" }));
    press(root, "again");
    expect(notice.textContent).toBe("The cell has ended: there is nothing to profile.");
    expect(ask).toHaveBeenCalledTimes(2);
  });

  it("says that stacks cannot be refreshed once the cell has ended", async () => {
    const { root, panel, model } = await shown(run({}));
    panel.setQuestions({ ask: () => Promise.resolve({ text: "rank 0: idle" }) });
    press(root, "Stacks");
    await vi.waitFor(() => {
      expect(root.querySelector("pre")).not.toBeNull();
    });
    panel.setQuestions(null);
    model.update(run({ outcome: "ok" }));
    press(root, "refresh");
    expect(root.querySelector(".dtrain-notice")!.textContent).toBe("The cell has ended: there is nothing to refresh.");
  });

  it("leads to the profile a person who waits for it, and nobody who works elsewhere", async () => {
    const { root, panel } = await shown(run({}));
    const { ask, answer } = profiler();
    panel.setQuestions({ ask });
    await vi.waitFor(() => {
      expect(root.querySelector<HTMLElement>(".dtrain-button")!.hidden).toBe(false);
    });
    const elsewhere = document.createElement("textarea");
    document.body.append(elsewhere);
    const scrolled = vi.spyOn(Element.prototype, "scrollIntoView");
    const region = (): Element => root.querySelector(".dtrain-profile")!;
    const profile = async (name: string, meanwhile = (): void => undefined): Promise<Element> => {
      scrolled.mockClear();
      const button = buttonOf(root, name);
      button.focus();
      button.click();
      meanwhile();
      answer();
      await arrived(root);
      return region();
    };
    const leave = (): void => {
      elsewhere.focus();
    };
    expect(await profile("Profile")).toBe(document.activeElement);
    expect(scrolled).toHaveBeenCalledTimes(1);
    expect(await profile("again")).toBe(document.activeElement);
    await profile("again", leave);
    expect([document.activeElement, scrolled.mock.calls.length]).toEqual([elsewhere, 0]);
    scrolled.mockRestore();
  });
});

/** Questions for a profile, which `answer` answers. */
function profiler(): { ask: ReturnType<typeof vi.fn<Questions["ask"]>>; answer: () => void } {
  let done: (answer: Answer) => void = () => undefined;
  const profile = { path: "/w/p.json.gz", file: "", tables: [], remarks: [] };
  return {
    ask: vi.fn<Questions["ask"]>(
      () =>
        new Promise((resolve) => {
          done = resolve;
        }),
    ),
    answer: () => {
      done({ text: "", profile });
    },
  };
}

function buttonOf(root: HTMLElement, words: string): HTMLButtonElement {
  return [...root.querySelectorAll("button")].find((one) => one.textContent === words)!;
}

function press(root: HTMLElement, words: string): void {
  buttonOf(root, words).click();
}

/** Wait until the profile that was asked for is there. */
async function arrived(root: HTMLElement): Promise<void> {
  await vi.waitFor(() => {
    const words = root.querySelector(".dtrain-notice")!.textContent;
    expect([words, root.querySelector(".dtrain-profile")]).toEqual([
      "The profile is below the charts.",
      expect.any(HTMLElement),
    ]);
  });
}

describe("formatted values", () => {
  it("are short", () => {
    expect([0, 1.23456, -0.00012, 123456, NaN, -Infinity].map(number)).toEqual([
      "0",
      "1.235",
      "−1.20e−4",
      "1.23e5",
      "NaN",
      "−∞",
    ]);
    expect([999, 1_000_000, 12.3e9].map(bytes)).toEqual(["999 B", "1.0 MB", "12.3 GB"]);
    expect([0.5, 59, 61, 3725].map(clock)).toEqual(["0.5 s", "59 s", "1:01", "1:02:05"]);
    expect([0.0001, 0.0123, 2].map(duration)).toEqual(["100 µs", "12.3 ms", "2.00 s"]);
    expect(count(1234567)).toBe("1,234,567");
    expect(rankList([5, 0, 1, 2])).toBe("0-2,5");
  });

  it("show a rank's output without colour codes and redrawn lines", () => {
    expect(plain("\u001b[31mred\u001b[0m\r\n10%\r20%\r\nend")).toBe("red\n20%\nend");
  });
});
