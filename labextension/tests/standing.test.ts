import { createElement } from "react";
import { createRoot } from "react-dom/client";
import { afterEach, describe, expect, it, vi } from "vitest";
import type { Actions } from "../src/lab/actions";
import type { World } from "../src/lab/messages";
import { RankList } from "../src/lab/ranks";
import { Details } from "../src/lab/worlds";
import { RankStrip } from "../src/rankStrip";
import { lookOf, oddOnes, remarkOf, stateWords } from "../src/standing";
import type { Rank } from "../src/model";
import type { RankState } from "../src/runDocument";

const SIZE = 1024;
const NODES = Array.from({ length: SIZE / 8 }, (_, node) => `gpu${node}`);
const KILLED = [64, 65, 66];

function ranks(states: Record<number, RankState> = {}, most: RankState = "running"): Rank[] {
  return Array.from({ length: SIZE }, (_, rank) => ({
    rank,
    node: Math.floor(rank / 8),
    state: states[rank] ?? most,
    step: 10,
    memory: 1e9,
    hostMemory: null,
    cpu: 99,
    workers: 0,
    workersMemory: 0,
    gpu: null,
    pace: rank === 900 ? 0.2 : 0.1,
    slower: rank === 900 ? 1 : null,
    words: "",
  }));
}

const STATES: Record<number, RankState> = { 517: "error", 64: "dead", 65: "dead", 66: "dead" };

function texts(root: Element, selector: string): (string | null)[] {
  return [...root.querySelectorAll(selector)].map((one) => one.textContent);
}

afterEach(() => {
  document.body.replaceChildren();
});

describe("the odd ones of 1,024 ranks", () => {
  it("are those in a rare state, the gravest first, and the slowest", () => {
    expect(oddOnes(ranks(STATES)).map((rank) => rank.rank)).toEqual([...KILLED, 517, 900]);
    expect(oddOnes(ranks({}), new Map([[3, "is above the others"]])).map((rank) => rank.rank)).toEqual([3, 900]);
  });

  it("are few, and a state that most ranks share is none", () => {
    const half = Object.fromEntries(Array.from({ length: 500 }, (_, rank) => [rank, "dead" as const]));
    expect(oddOnes(ranks(half))).toHaveLength(32);
    expect(oddOnes(ranks({ 5: "running" }, "waiting")).map((rank) => rank.rank)).toEqual([5, 900]);
  });
});

describe("a rank in a call that needs others", () => {
  it("is neutral while that is normal, waits once it has stood still, and has no such remark", () => {
    const rank = (state: RankState, words: string): Rank => ({ ...ranks({})[0]!, state, words });
    const seen = (one: Rank): string[] => [lookOf(one), stateWords(one), remarkOf(one)];
    expect(seen(rank("running", ""))).toEqual(["running", "running", ""]);
    expect(seen(rank("running", "all_reduce"))).toEqual(["calling", "in all_reduce", ""]);
    expect(seen(rank("waiting", "all_reduce"))).toEqual(["waiting", "waiting in all_reduce", ""]);
    expect(seen(rank("dead", "was killed"))).toEqual(["dead", "dead", "was killed"]);
    expect(seen(rank("sent", ""))).toEqual(["sent", "queued", ""]);
    expect(seen(rank("lost", ""))).toEqual(["lost", "died", ""]);
  });
});

describe("the strip of 1,024 ranks", () => {
  function shown(): { strip: RankStrip; chosen: number[] } {
    const chosen: number[] = [];
    const strip = new RankStrip((rank) => {
      chosen.push(rank);
    });
    document.body.append(strip.node);
    strip.update({ ranks: ranks(STATES), nodes: NODES }, null, new Map());
    return { strip, chosen };
  }

  it("begins with the odd ones, and then has a tile for each host", () => {
    const { strip } = shown();
    const names = texts(strip.node, ".dtrain-name");
    expect(names).toHaveLength(5 + 128);
    expect(names.slice(0, 7)).toEqual([
      "gpu8 64",
      "gpu8 65",
      "gpu8 66",
      "gpu64 517",
      "gpu112 900",
      "gpu0 0-7",
      "gpu1 8-15",
    ]);
    const host = strip.node.querySelectorAll(".dtrain-tile")[5 + 8]!;
    expect(host.getAttribute("aria-label")).toContain("gpu8 64-71: dead");
    expect(host.getAttribute("aria-label")).toContain("3 dead, 5 running");
    const other = strip.node.querySelectorAll(".dtrain-tile")[5]!;
    expect(other.getAttribute("aria-label")).toMatch(/^gpu0 0-7: running, .*8 running$/);
    expect(texts(strip.node, ".dtrain-node:not([hidden]) .dtrain-host")).toEqual(["ranks to look at", "all, by host"]);
  });

  it("shows the ranks of a host at a click, and chooses a rank at another", () => {
    const { strip, chosen } = shown();
    const tile = (name: string): HTMLElement =>
      [...strip.node.querySelectorAll<HTMLElement>(".dtrain-tile")].find(
        (one) => one.querySelector(".dtrain-name")!.textContent === name,
      )!;
    tile("gpu1 8-15").click();
    expect(texts(strip.node, ".dtrain-host")).toEqual(["ranks to look at", "gpu1", "all, by host"]);
    tile("12").click();
    expect(chosen).toEqual([12]);
    tile("gpu1 8-15").click();
    expect(texts(strip.node, ".dtrain-name")).toHaveLength(5 + 128);
  });

  it("keeps the focus when other ranks become odd", () => {
    const { strip } = shown();
    strip.node.querySelectorAll<HTMLElement>(".dtrain-tile")[3]!.focus();
    strip.update({ ranks: ranks({ ...STATES, 3: "error" }), nodes: NODES }, null, new Map());
    expect((document.activeElement as HTMLElement).dataset.rank).toBe("517");
  });
});

describe("the sidebar's list of 1,024 ranks", () => {
  it("has the odd ones, and a row for each host that shows its ranks at a click", async () => {
    const details = new Details();
    details.rows = ranks(STATES).map(({ rank, node, state }) => [
      rank,
      node,
      NODES[node]!,
      rank % 8,
      "cuda:0",
      1000 + rank,
      state === "lost" ? "dead" : state,
      "",
      "",
      "",
      false,
    ]);
    const trans = {
      __: (text: string, ...parts: unknown[]) =>
        parts.reduce<string>((one, part, at) => one.replace(`%${at + 1}`, String(part)), text),
    };
    const props = {
      world: { id: "w", name: "many" } as World,
      named: false,
      details,
      actions: {} as Actions,
      trans: trans as never,
    };
    const place = document.createElement("div");
    document.body.append(place);
    createRoot(place).render(createElement(RankList, props));
    await vi.waitFor(() => {
      expect(place.querySelectorAll("li").length).toBeGreaterThan(0);
    });
    expect(place.querySelectorAll("li")).toHaveLength(4);
    expect([...place.querySelectorAll("li")].map((row) => row.dataset.rank)).toEqual(["64", "65", "66", "517"]);
    expect(place.querySelectorAll(".dtrain-does")[3]!.textContent).toBe("gpu64 · error");
    const hosts = place.querySelectorAll<HTMLElement>(".dtrain-host-row");
    expect(hosts).toHaveLength(128);
    expect(hosts[1]!.textContent).toBe("gpu1ranks 8-15 · 8 running");
    expect(hosts[8]!.textContent).toBe("gpu8ranks 64-71 · 3 dead, 5 running");
    hosts[1]!.click();
    await vi.waitFor(() => {
      expect(place.querySelectorAll("li")).toHaveLength(4 + 8);
    });
    expect(place.querySelectorAll("*").length).toBeLessThan(1500);
  });
});
