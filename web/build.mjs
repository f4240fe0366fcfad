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

const hashOf = (data) => createHash("sha256").update(data).digest("hex").slice(0, 12);

async function bundle() {
  const built = await build({
    entryPoints: [path.join(HERE, "src/main.tsx"), path.join(HERE, "src/style.css")],
    absWorkingDir: HERE,
    outdir: OUT,
    bundle: true,
    write: false,
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
    const { name, ext } = path.parse(file.path);
    assets.set(`${name}${ext}`, { name: `${name}-${hashOf(file.contents)}${ext}`, data: file.contents });
  }
  const icon = await readFile(path.join(HERE, "src/icon.svg"));
  assets.set("icon.svg", { name: `icon-${hashOf(icon)}.svg`, data: icon });
  return assets;
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

const assets = await bundle();
let html = await readFile(path.join(HERE, "src/index.html"), "utf8");
for (const [plain, asset] of assets) html = html.replace(`page/${plain}`, `page/${asset.name}`);
await rm(OUT, { recursive: true, force: true });
await mkdir(OUT, { recursive: true });
for (const asset of assets.values()) await writeFile(path.join(OUT, asset.name), asset.data);
await writeFile(path.join(OUT, "index.html"), html);
await writeFile(path.join(OUT, "licenses.txt"), await licenses());
