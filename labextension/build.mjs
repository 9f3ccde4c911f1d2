// Builds what the Python package ships: the widget into jupyter_dtrain/static, and JupyterLab's extension, which draws
// saved runs and the sidebar, into jupyter_dtrain/labextension. Both from the same sources; `npm run build` compiles
// these first. Then esbuild bundles them with what they use of uPlot, since JupyterLab's builder leaves in what nobody
// uses; the builder only adds the way in which JupyterLab loads it all.

import { spawnSync } from "node:child_process";
import { copyFileSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import path from "node:path";
import * as esbuild from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const require = createRequire(import.meta.url);

// Names of files carry digests: what an earlier build left would be shipped too.
rmSync(path.join(here, "../jupyter_dtrain/labextension"), { recursive: true, force: true });

/** Leaves out of uPlot what hangs on its one object and is never asked for here, so that it is not bundled. */
const slimPlot = {
  name: "slim-plot",
  setup(build) {
    build.onLoad({ filter: /uPlot\.esm\.js$/ }, ({ path: file }) => {
      let contents = readFileSync(file, "utf8");
      for (const unused of [
        /^\s*\(paths\.(?:stepped|bars|spline)\s*= \w+\);$/gm,
        /^\s*uPlot\.(?:join|orient|addGap|clipGaps)\s*= \w+;$/gm,
      ]) {
        const found = contents.match(unused)?.length ?? 0;
        if (found < 3) throw new Error(`uPlot no longer has what ${unused} names: see what it exports now.`);
        contents = contents.replace(unused, "");
      }
      return { contents };
    });
    build.onLoad({ filter: /uPlot\.min\.css$/ }, ({ path: file }) => {
      const unused = /[^{}]*\.u-(?:legend|inline|series|title)\b[^{}]*\{[^}]*\}/g;
      return { contents: readFileSync(file, "utf8").replace(unused, ""), loader: "css" };
    });
  },
};

const bundled = {
  absWorkingDir: here,
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2020",
  legalComments: "none",
  plugins: [slimPlot],
};
await esbuild.build({
  ...bundled,
  entryPoints: { widget: "src/widget.ts" },
  outdir: "../jupyter_dtrain/static",
  banner: { js: "/* jupyter-dtrain; includes uPlot: see LICENSE.uPlot */" },
});
await esbuild.build({
  ...bundled,
  entryPoints: ["lib/lab/index.js", "lib/renderer.js"],
  outbase: "lib",
  outdir: "lib/bundled",
  splitting: true,
  external: ["@*", "react"], // JupyterLab has those
});
const style = await esbuild.build({
  absWorkingDir: here,
  entryPoints: ["style/lab.css"],
  bundle: true,
  minify: true,
  plugins: [slimPlot],
  write: false,
});
writeFileSync(
  path.join(here, "lib/style.js"),
  `const node = document.createElement("style");
node.textContent = ${JSON.stringify(style.outputFiles[0].text)};
document.head.append(node);
`,
);
await esbuild.build({
  absWorkingDir: here,
  entryPoints: { widget: "style/index.css" },
  outdir: "../jupyter_dtrain/static",
  bundle: true,
  minify: true,
  plugins: [slimPlot],
});

// JupyterLab's own builder: it shares with the page what the page has already.
const core = require.resolve("@jupyterlab/core-meta/core.package.json");
const builder = path.join(here, "node_modules/@jupyter/builder/lib/build-labextension.js");
const built = spawnSync(process.execPath, [builder, "--core-package-file", core, here], {
  cwd: here,
  stdio: "inherit",
});
process.exitCode = built.status ?? 1;

// uPlot is in both: its licence wants to be passed on.
for (const folder of ["static", "labextension/static"]) {
  copyFileSync(require.resolve("uplot/LICENSE"), path.join(here, "../jupyter_dtrain", folder, "LICENSE.uPlot"));
}
