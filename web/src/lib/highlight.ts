// Code in color: one tokenizer for the syntax that most languages share, so that no grammar is shipped.

const KEYWORDS = new Set(
  (
    "and as assert async await begin break by case catch class const continue create def default defer del delete do " +
    "done elif else end enum except export extends extern false False fi finally fn for foreach from func function go " +
    "group having if impl implements import in insert instanceof interface into is join lambda left let limit local " +
    "loop match mod module mut namespace new nil None nonlocal not null of on or order override package pass private " +
    "protected pub public raise readonly return select self set static struct super switch table template then this " +
    "throw trait true True try type typedef typeof union unless until update use using values var view void where " +
    "while with yield"
  ).split(" "),
);
const TOKEN = new RegExp(
  [
    String.raw`(?<comment>\/\*[^]*?(?:\*\/|$)|\/\/[^\n]*|(?<=^|\s)#[^\n]*|(?<=^|\s)--(?=\s)[^\n]*|<!--[^]*?(?:-->|$))`,
    String.raw`(?<text>"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|` + "`(?:\\\\.|[^`\\\\])*`?)",
    String.raw`(?<number>\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b)`,
    String.raw`(?<word>[A-Za-z_$][\w$]*)`,
  ].join("|"),
  "gim",
);
const MAX_COLORED = 50_000; // characters; longer code stays plain

export function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (found) => `&#${found.charCodeAt(0)};`);
}

// They turn the order of what is shown around, so that code looks like other code than it is (CVE-2021-42574).
const BIDI = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g;

function shown(text: string): string {
  return escapeHtml(text).replace(
    BIDI,
    (found) => `<span class="hidden-character">U+${found.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}</span>`,
  );
}

function classOf(groups: Record<string, string | undefined>, code: string, end: number): string {
  if (groups["comment"] !== undefined) return "c";
  if (groups["text"] !== undefined) return /^\s*:/.test(code.slice(end, end + 4)) ? "p" : "s";
  if (groups["number"] !== undefined) return "n";
  const word = groups["word"] ?? "";
  if (KEYWORDS.has(word) || (word === word.toUpperCase() && KEYWORDS.has(word.toLowerCase()))) return "k";
  return code[end] === "(" ? "f" : "";
}

/** HTML of code: escaped, with spans of the classes c(omment), s(tring), p(roperty), n(umber), k(eyword), f(unction). */
export function highlight(code: string, language: string): string {
  if (code.length > MAX_COLORED || /^(text|txt|plain|markdown|md|console|output)$/.test(language)) return shown(code);
  let html = "";
  let at = 0;
  for (const found of code.matchAll(TOKEN)) {
    html += shown(code.slice(at, found.index));
    at = found.index + found[0].length;
    const name = classOf(found.groups ?? {}, code, at);
    html += name ? `<span class="${name}">${shown(found[0])}</span>` : shown(found[0]);
  }
  return html + shown(code.slice(at));
}
