import eslint from "@eslint/js";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["lib", "node_modules"] },
  eslint.configs.recommended,
  {
    files: ["**/*.ts"],
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
  {
    files: ["*.mjs"],
    languageOptions: { globals: { console: "readonly", process: "readonly" } },
  },
);
