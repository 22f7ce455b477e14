// Search the built documentation by its own scripts: print the pages found for each query, best first.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, ...queries] = process.argv.slice(2);
const page = {
  readyState: "loading", // the scripts wait for the page, and change nothing
  addEventListener: () => {},
  getElementById: () => null,
  documentElement: { dataset: {} },
};
const context = vm.createContext({ document: page, console, SPHINX_HIGHLIGHT_ENABLED: false });
context.window = context;
const scripts = ["documentation_options", "doctools", "language_data", "searchtools"];
const files = [...scripts.map((name) => `_static/${name}.js`), "searchindex.js"];
for (const file of files) {
  vm.runInContext(fs.readFileSync(path.join(folder, file), "utf8"), context, { filename: file });
}
const search = vm.runInContext(
  "(query) => Search._performSearch(...Search._parseQuery(query)).reverse()",
  context,
);
const found = queries.map((query) => [query, [...new Set(search(query).map((result) => result[0]))]]);
console.log(JSON.stringify(Object.fromEntries(found)));
