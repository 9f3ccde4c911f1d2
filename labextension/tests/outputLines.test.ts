import { describe, expect, it } from "vitest";
import { linesOf, ranksIn, select } from "../src/lab/output/lines";

const TEXT = `[0-1] start
[0] loss 1
[1] loss 2
[0] done
[1] done
not of a rank
[2-9999999] no label
`;

describe("the lines of a cell", () => {
  it("have ranks, and text without them", () => {
    const lines = linesOf(TEXT);
    expect(lines.map((line) => [line.ranks.join(), line.text])).toEqual([
      ["0,1", "start"],
      ["0", "loss 1"],
      ["1", "loss 2"],
      ["0", "done"],
      ["1", "done"],
      ["", "not of a rank"],
      ["", "[2-9999999] no label"],
    ]);
    expect(ranksIn(lines)).toEqual([0, 1]);
    expect(ranksIn(linesOf("[0,2-3,7] x\n[1]\n"))).toEqual([0, 1, 2, 3, 7]);
    expect(linesOf("")).toEqual([]);
  });

  it("are shown as they were printed, for each rank, and for one", () => {
    const lines = linesOf(TEXT);
    expect(select(lines, "merged", "").join("\n") + "\n").toBe(TEXT);
    expect(select(lines, "each", "").slice(0, 4)).toEqual(["[0] start", "[1] start", "[0] loss 1", "[1] loss 2"]);
    expect(select(lines, "each", "").slice(4, 7)).toEqual(["[0] done", "[1] done", "not of a rank"]);
    expect(select(lines, 1, "")).toEqual(["start", "loss 2", "done"]);
  });

  it("differ where not every rank printed them as often as the others", () => {
    const lines = linesOf(TEXT);
    expect(select(lines, "differences", "")).toEqual(["[0] loss 1", "[1] loss 2"]);
    expect(select(linesOf("[0-1] a\n[0] a\n[1] b\n"), "differences", "")).toEqual(["[0-1] a", "[0] a", "[1] b"]);
  });

  it("are searched in upper and lower case", () => {
    expect(select(linesOf(TEXT), "merged", "LOSS")).toEqual(["[0] loss 1", "[1] loss 2"]);
    expect(select(linesOf(TEXT), 0, "nothing")).toEqual([]);
  });

  it("of a label that names only some of its ranks may be any rank's", () => {
    const lines = linesOf("[512 ranks: 0,2,4,…] even\n[1,3] odd\n[0,1,…] own text\n");
    expect(lines.map(({ ranks, more, text }) => [ranks.join(), more, text])).toEqual([
      ["0,2,4", true, "even"],
      ["1,3", false, "odd"],
      ["", false, "[0,1,…] own text"],
    ]);
    expect(select(lines, 600, "")).toEqual(["even"]);
    expect(select(lines, "each", "even")).toEqual(["[512 ranks: 0,2,4,…] even"]);
    expect(select(lines, "differences", "even")).toEqual(["[512 ranks: 0,2,4,…] even"]);
  });
});
