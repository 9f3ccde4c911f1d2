// Builds what the Python package ships: the widget into jupyter_dtrain/static, and JupyterLab's extension, which draws
// saved runs, into jupyter_dtrain/labextension. Both from the same sources; `npm run build` compiles these first.

import { spawnSync } from "node:child_process";
import { copyFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import path from "node:path";
import * as esbuild from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const require = createRequire(import.meta.url);

// Names of files carry digests: what an earlier build left would be shipped too.
rmSync(path.join(here, "../jupyter_dtrain/labextension"), { recursive: true, force: true });

await esbuild.build({
  absWorkingDir: here,
  entryPoints: { widget: "src/widget.ts" },
  outdir: "../jupyter_dtrain/static",
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2020",
  legalComments: "none",
  banner: { js: "/* jupyter-dtrain; includes uPlot: see LICENSE.uPlot */" },
});
// What JupyterLab's builder would take as it is written.
await esbuild.build({
  absWorkingDir: here,
  entryPoints: { style: "style/lab.css" },
  outdir: "lib",
  bundle: true,
  minify: true,
});
await esbuild.build({
  absWorkingDir: here,
  entryPoints: { widget: "style/index.css" },
  outdir: "../jupyter_dtrain/static",
  bundle: true,
  minify: true,
});

// uPlot is in it: its licence wants to be passed on.
copyFileSync(require.resolve("uplot/LICENSE"), path.join(here, "../jupyter_dtrain/static/LICENSE.uPlot"));

// JupyterLab's own builder: it shares with the page what the page has already.
const core = require.resolve("@jupyterlab/core-meta/core.package.json");
const builder = path.join(here, "node_modules/@jupyter/builder/lib/build-labextension.js");
const built = spawnSync(process.execPath, [builder, "--core-package-file", core, here], {
  cwd: here,
  stdio: "inherit",
});
process.exitCode = built.status ?? 1;
