// Writes the page into the Python package: hashed assets, index.html that names them, and the licenses of what
// is inside. The same sources and versions give the same bytes.
import { createHash } from "node:crypto";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const OUT = path.resolve(HERE, process.argv[2] ?? "../src/headrace/api/web/page");
const SHIPPED = ["preact", "@preact/signals", "@preact/signals-core", "marked", "dompurify", "uplot"];
const LICENSE_FILES = ["LICENSE", "LICENSE.md", "LICENSE.txt"];

const ENTRIES = ["main", "style"];

const hashOf = (data) => createHash("sha256").update(data).digest("hex").slice(0, 12);

async function bundle() {
  const built = await build({
    entryPoints: [path.join(HERE, "src/main.tsx"), path.join(HERE, "src/style.css")],
    absWorkingDir: HERE,
    outdir: OUT,
    bundle: true,
    splitting: true, // what one pane alone needs is read when it is opened
    chunkNames: "[name]-[hash]",
    write: false,
    metafile: true,
    minify: true,
    format: "esm",
    target: ["es2022"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none", // they are all in licenses.txt
    charset: "utf8",
    logLevel: "warning",
  });
  const assets = new Map();
  for (const file of built.outputFiles) {
    const { name, ext, base } = path.parse(file.path);
    const isEntry = ENTRIES.includes(name); // others have the hash in their names, which are inside of entries
    assets.set(base, { name: isEntry ? `${name}-${hashOf(file.contents)}${ext}` : base, data: file.contents });
  }
  const icon = await readFile(path.join(HERE, "src/icon.svg"));
  assets.set("icon.svg", { name: `icon-${hashOf(icon)}.svg`, data: icon });
  return { assets, needed: neededBy("main.js", built.metafile) };
}

/** The files that an entry imports at once: the browser reads them together with it. */
function neededBy(entry, { outputs }) {
  const [, { imports }] = Object.entries(outputs).find(([file]) => path.basename(file) === entry);
  return imports.filter(({ kind }) => kind === "import-statement").map((one) => path.basename(one.path));
}

async function licenses() {
  const parts = ["The page of Headrace contains these packages from npm.\n"];
  for (const name of SHIPPED) {
    const folder = path.join(HERE, "node_modules", name);
    const about = JSON.parse(await readFile(path.join(folder, "package.json"), "utf8"));
    let text = `License: ${about.license}\n`;
    for (const file of LICENSE_FILES) {
      const found = await readFile(path.join(folder, file), "utf8").catch(() => null);
      if (found !== null) {
        text = found;
        break;
      }
    }
    parts.push(`${"=".repeat(80)}\n${name} ${about.version} (${about.license})\n\n${text.trim()}\n`);
  }
  return parts.join("\n");
}

const { assets, needed } = await bundle();
let html = await readFile(path.join(HERE, "src/index.html"), "utf8");
const preloads = needed.map((name) => `<link rel="modulepreload" href="page/${name}">\n`).join("");
html = html.replace('<script type="module"', `${preloads}<script type="module"`);
for (const [plain, asset] of assets) html = html.replace(`page/${plain}`, `page/${asset.name}`);
await rm(OUT, { recursive: true, force: true });
await mkdir(OUT, { recursive: true });
for (const asset of assets.values()) await writeFile(path.join(OUT, asset.name), asset.data);
await writeFile(path.join(OUT, "index.html"), html);
await writeFile(path.join(OUT, "licenses.txt"), await licenses());
