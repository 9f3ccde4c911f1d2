// Builds the front end that the Python package ships: the widget into jupyter_dtrain/static, and JupyterLab's
// extension, which draws saved runs and the sidebar, into jupyter_dtrain/labextension. Both come from the same sources,
// which `npm run build` compiles first. esbuild then bundles them with the used parts of uPlot, since JupyterLab's
// builder does not remove unused code; that builder only adds the code by which JupyterLab loads the bundle.

import { spawnSync } from "node:child_process";
import { copyFileSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import path from "node:path";
import * as esbuild from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const require = createRequire(import.meta.url);

// File names contain digests, so files of an earlier build would stay and be shipped too.
for (const folder of ["../jupyter_dtrain/labextension", "lib/bundled"]) {
  rmSync(path.join(here, folder), { recursive: true, force: true });
}

/** Removes members of uPlot's one object that are not used here: a bundler cannot tell that they are unused. */
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
        if (found < 3) throw new Error(`uPlot no longer matches ${unused}: check what it exports now.`);
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

/** A script that adds styles to the page. */
function styleScript(styles) {
  return `const node = document.createElement("style");
node.textContent = ${JSON.stringify(styles)};
document.head.append(node);
`;
}

const bundled = {
  absWorkingDir: here,
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  legalComments: "none",
  plugins: [slimPlot],
};
/** Styles that a script imports come with that script, as those of a part that is loaded later. */
const styleInScript = {
  name: "style-in-script",
  setup(build) {
    build.onLoad({ filter: /style.(?:runs|runPage|output|scaling|stepTime|profile)\.css$/ }, async ({ path: file }) => {
      const { outputFiles } = await esbuild.build({ entryPoints: [file], bundle: true, minify: true, write: false });
      return { contents: styleScript(outputFiles[0].text) };
    });
  },
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
  external: ["@*", "react"], // JupyterLab provides these
  plugins: [slimPlot, styleInScript],
});
// JupyterLab's builder gives the parts that are loaded later these names.
const LATER = {
  tab: "runs",
  dialog: "start",
  view: "output",
  gantt: "pipelines",
  variables: "variables",
  history: "history",
  scaling: "speedup",
  stepTime: "steps",
  profile: "profile",
};
const missing = new Set(Object.keys(LATER));
const loads = new RegExp(`import\\((?="[^"]*/(${[...missing].join("|")})-)`, "g");
for (const name of readdirSync(path.join(here, "lib/bundled"), { recursive: true })) {
  if (!name.endsWith(".js")) continue;
  const file = path.join(here, "lib/bundled", name);
  const named = (_, part) => {
    missing.delete(part);
    return `import(/* webpackChunkName: "${LATER[part]}" */`;
  };
  writeFileSync(file, readFileSync(file, "utf8").replace(loads, named));
}
if (missing.size > 0) throw new Error(`${[...missing].join(", ")} is not loaded by itself any more.`);
const style = await esbuild.build({
  absWorkingDir: here,
  entryPoints: ["style/lab.css"],
  bundle: true,
  minify: true,
  plugins: [slimPlot],
  write: false,
});
writeFileSync(path.join(here, "lib/style.js"), styleScript(style.outputFiles[0].text));
await esbuild.build({
  absWorkingDir: here,
  entryPoints: { widget: "style/widget.css" },
  outdir: "../jupyter_dtrain/static",
  bundle: true,
  minify: true,
  plugins: [slimPlot],
});

// JupyterLab's own builder lets the extension share the packages that the page has already loaded.
const core = require.resolve("@jupyterlab/core-meta/core.package.json");
const builder = path.join(here, "node_modules/@jupyter/builder/lib/build-labextension.js");
const built = spawnSync(process.execPath, [builder, "--core-package-file", core, here], {
  cwd: here,
  stdio: "inherit",
});
process.exitCode = built.status ?? 1;

// Both bundles include uPlot, whose licence must be shipped with it.
for (const folder of ["static", "labextension/static"]) {
  copyFileSync(require.resolve("uplot/LICENSE"), path.join(here, "../jupyter_dtrain", folder, "LICENSE.uPlot"));
}
