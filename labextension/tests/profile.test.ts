import { describe, expect, it } from "vitest";
import type { PanelProfile } from "../src/generated";
import { profileNode } from "../src/profile";

const caption = "Run 3, 5 steps from step 121 on, ranks 0-1: 2.0 ms a step";
const profile: PanelProfile = {
  path: "/somewhere/work/profile-3-120.json.gz",
  file: "work/profile-3-120.json.gz",
  tables: [
    {
      caption,
      columns: ["rank", "step", "operator", "size", "bus bandwidth", "change"],
      rows: [
        ["0", "2.0 ms", "<b>aten::mm</b>", "", "2.5 GB/s", "-10%"],
        ["1", "350 µs", "aten::add", "4 MB", "", "new"],
      ],
    },
  ],
  remarks: ["Rank 2: missing: died while it was profiled."],
};

describe("a profile", () => {
  it("is its tables, with numbers to the right, and what is missing", () => {
    const node = profileNode(profile, "");
    expect(node.querySelector("caption")!.textContent).toBe(profile.tables[0]!.caption);
    const sides = [...node.querySelectorAll<HTMLElement>("thead th")].map((cell) => cell.dataset.column);
    expect(sides).toEqual(["number", "number", "words", "number", "number", "words"]);
    expect([...node.querySelectorAll("tbody tr:first-child td")].map((cell) => cell.textContent)).toEqual(
      profile.tables[0]!.rows[0],
    );
    expect(node.querySelector("p")!.textContent).toBe(profile.remarks[0]);
  });

  it("inserts names as text", () => {
    expect(profileNode(profile, "").querySelector("b")).toBeNull();
  });

  it("links its trace where pages can download it, and else says where it is", () => {
    const last = (address: string): HTMLElement => [...profileNode(profile, address).querySelectorAll("p")].pop()!;
    expect(last("").textContent).toContain("is in /somewhere/work/profile-3-120.json.gz");
    expect([...last("").querySelectorAll("a")].map((link) => link.textContent)).toEqual(["ui.perfetto.dev"]);
    const file = last("/lab/files/work/profile-3-120.json.gz").querySelector("a")!;
    expect([file.textContent, file.getAttribute("href"), file.download, file.title]).toEqual([
      "profile-3-120.json.gz",
      "/lab/files/work/profile-3-120.json.gz",
      "profile-3-120.json.gz",
      profile.path,
    ]);
  });
});
