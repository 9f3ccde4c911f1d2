import eslint from "@eslint/js";
import jupyter from "@jupyter/eslint-plugin";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["lib", "node_modules"] },
  { ...eslint.configs.recommended, files: ["**/*.{mjs,ts,tsx}"] },
  {
    files: ["**/*.{ts,tsx}"],
    extends: [...tseslint.configs.strictTypeChecked, ...tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      // Templates may contain numbers.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // noUncheckedIndexedAccess makes every element of a typed array possibly undefined, even after a bounds check.
      "@typescript-eslint/no-non-null-assertion": "off",
      // uPlot exports its enums only as types, so code has to use their numbers.
      "@typescript-eslint/no-unsafe-enum-assignment": "off",
    },
  },
  { plugins: { jupyter } },
  ...jupyter.configs.recommended,
  {
    // The widget and saved runs are also shown outside JupyterLab, where there is no translator; tests are shown nowhere.
    files: ["src/*.ts", "tests/*.ts"],
    rules: { "jupyter/no-untranslated-string": "off" },
  },
  {
    files: ["*.mjs"],
    languageOptions: { globals: { console: "readonly", process: "readonly" } },
  },
);
