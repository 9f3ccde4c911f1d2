import { expect, test } from "vitest";
import { decodeSteps } from "../src/runDocument";

test("a document cannot ask for more steps than it has values", () => {
  expect(Array.from(decodeSteps([5, 2, 1e8], 3))).toEqual([5, 7, 9]);
  expect(Array.from(decodeSteps([0, 1, 2], 3))).toEqual([0, 1]);
});
