// Starts the CPython of the npm package `pyodide` in node, with folders of this machine mounted, and calls
// the function `main` of a Python file.
// node start.mjs PACKAGE FILE /MOUNT=FOLDER... -- ARGUMENT...

import { pathToFileURL } from "node:url";
import { readFileSync } from "node:fs";

const [pyodideFolder, file, ...rest] = process.argv.slice(2);
const split = rest.indexOf("--");
const { loadPyodide } = await import(pathToFileURL(`${pyodideFolder}/pyodide.mjs`).href);
const python = await loadPyodide({ indexURL: pyodideFolder, env: { HOME: "/home/pyodide" } });
for (const mount of rest.slice(0, split)) {
  const at = mount.indexOf("=");
  python.FS.mkdirTree(mount.slice(0, at));
  python.FS.mount(python.FS.filesystems.NODEFS, { root: mount.slice(at + 1) }, mount.slice(0, at));
}
python.runPython(readFileSync(file, "utf8"), { filename: file });
const main = python.globals.get("main");
// Not process.exit: what Python has printed may still be on its way to a pipe.
process.exitCode = main(python.toPy(rest.slice(split + 1)));
