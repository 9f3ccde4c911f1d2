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
      // A number in a template is what a template is for.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // noUncheckedIndexedAccess says undefined of every element of a typed array whose bounds were just checked.
      "@typescript-eslint/no-non-null-assertion": "off",
      // uPlot's enums exist as types only: their numbers are all that one can write.
      "@typescript-eslint/no-unsafe-enum-assignment": "off",
    },
  },
  { plugins: { jupyter } },
  ...jupyter.configs.recommended,
  {
    // The widget and the saved run also stand where JupyterLab, whose translator it would be, is not.
    files: ["src/*.ts"],
    rules: { "jupyter/no-untranslated-string": "off" },
  },
  {
    files: ["*.mjs"],
    languageOptions: { globals: { console: "readonly", process: "readonly" } },
  },
);
