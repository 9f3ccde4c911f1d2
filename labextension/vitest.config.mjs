import { readFileSync } from "node:fs";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [
    {
      // JupyterLab's packages import their icons as text.
      name: "svg-as-text",
      enforce: "pre",
      load(id) {
        const [path] = id.split("?");
        return path.endsWith(".svg") ? `export default ${JSON.stringify(readFileSync(path, "utf8"))}` : null;
      },
    },
  ],
  test: {
    include: ["tests/**/*.test.ts"],
    environment: "jsdom",
    setupFiles: ["tests/setup.ts"],
    // These packages are written for bundlers.
    server: { deps: { inline: [/@jupyterlab\//, /@jupyter\//, /@lumino\//, /@microsoft\//, /@rjsf\//] } },
  },
});
