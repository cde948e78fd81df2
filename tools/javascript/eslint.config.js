import js from "@eslint/js";

export default [
  { ignores: ["**/vendor/"] },
  js.configs.recommended,
  {
    rules: {
      "no-control-regex": "off", // an SVG leaves out what XML cannot hold
      "no-undef": "off", // tsc knows the browser's names
      eqeqeq: ["error", "smart"],
      "no-else-return": "error",
      "no-shadow": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-template": "error",
    },
  },
];
