import type { TranslationBundle } from "@jupyterlab/translation";
import { expect, it } from "vitest";
import type { ExportTarget } from "../src/generated";
import { bodyOf, type Wanted } from "../src/lab/exportFields";

const trans = { __: (text: string, word: string) => text.replace("%1", word) } as unknown as TranslationBundle;
const slurm: ExportTarget = {
  name: "slurm",
  help: "a batch script",
  suffix: ".sbatch",
  settings: [{ name: "time", help: "", default: "01:00:00" }],
};
const wanted: Wanted = {
  target: "slurm",
  file: " job.sbatch ",
  ranks: "16",
  nodes: "",
  local: true,
  force: false,
  settings: { "slurm.time": "2:00:00", "azureml.compute": "x" },
};

it("asks for what was typed, with the settings of the chosen target alone", () => {
  expect(bodyOf("a/b.ipynb", wanted, slurm, trans)).toEqual({
    notebook: "a/b.ipynb",
    target: "slurm",
    file: "job.sbatch",
    ranks: 16,
    nodes: null,
    with_local: true,
    force: false,
    settings: { time: "2:00:00" },
  });
});

it("refuses a number that is none", () => {
  expect(() => bodyOf("a.ipynb", { ...wanted, ranks: "two" }, slurm, trans)).toThrow("Ranks must be a whole number");
  expect(() => bodyOf("a.ipynb", { ...wanted, nodes: "0" }, slurm, trans)).toThrow("Nodes must be a whole number");
});
