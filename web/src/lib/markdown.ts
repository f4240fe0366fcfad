// Markdown of models to HTML. Nothing that a model writes becomes an element of its own: HTML in it is shown as
// text, images are links, and what is left goes through DOMPurify with a short list of what may stand.
import DOMPurify from "dompurify";
import { Marked, type Token } from "marked";
import { escapeHtml, highlight } from "./highlight";

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const ALLOWED_TAGS = (
  "p br hr h1 h2 h3 h4 h5 h6 strong em del code pre ul ol li blockquote a table thead tbody tr th td span div button input"
).split(" ");
const PLAIN_ATTR = ["class", "start", "align", "type", "disabled", "checked", "data-copy", "title", "tabindex", "aria-label", "role"];
const ALLOWED_ATTR = ["href", ...PLAIN_ATTR];

function link(href: string, html: string): string {
  const target = href.trim();
  return SAFE_LINK.test(target) ? `<a href="${escapeHtml(target)}" title="${escapeHtml(target)}">${html}</a>` : html;
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escapeHtml(text)}</p>` : escapeHtml(text)),
    image: ({ href, text }) => link(href, `<span class="image">Image: ${escapeHtml(text || href)}</span>`),
    link({ href, tokens }) {
      return link(href, this.parser.parseInline(tokens));
    },
    code({ text, lang }) {
      const language = (lang ?? "").split(/\s/)[0]!.slice(0, 30);
      return (
        `<div class="code"><div class="code-head"><span>${escapeHtml(language || "code")}</span>` +
        `<button type="button" class="quiet small" data-copy="code">Copy</button></div>` +
        `<pre tabindex="0" role="region" aria-label="Code"><code>${highlight(text, language)}</code></pre></div>`
      );
    },
    table(token) {
      const cells = (row: typeof token.header, tag: string): string =>
        row
          .map((cell) => {
            const align = cell.align ? ` align="${cell.align}"` : "";
            return `<${tag}${align}>${this.parser.parseInline(cell.tokens)}</${tag}>`;
          })
          .join("");
      const rows = token.rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
      return (
        `<div class="table-box" tabindex="0" role="region" aria-label="Table"><table><thead><tr>` +
        `${cells(token.header, "th")}</tr></thead><tbody>${rows}</tbody></table></div>`
      );
    },
    checkbox: ({ checked }) => `<input type="checkbox" disabled aria-label="${checked ? "done" : "open"}"${checked ? " checked" : ""}> `,
  },
});

DOMPurify.addHook("afterSanitizeAttributes", (element) => {
  if (element.tagName === "A") {
    element.setAttribute("target", "_blank");
    element.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

/** What the page may insert as HTML; with Trusted Types a browser takes nothing else. */
export type SafeHtml = { readonly __html: string };

const TRUSTED = "trustedTypes" in globalThis;

function sanitize(html: string): SafeHtml {
  const options = { ALLOWED_TAGS, ALLOWED_ATTR, ALLOWED_URI_REGEXP: SAFE_LINK, ADD_URI_SAFE_ATTR: PLAIN_ATTR, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false };
  // Preact passes on what it gets to innerHTML; its types know only strings.
  const clean: unknown = TRUSTED ? DOMPurify.sanitize(html, { ...options, RETURN_TRUSTED_TYPE: true }) : DOMPurify.sanitize(html, options);
  return { __html: clean as string };
}

const MAX_MARKDOWN = 400_000; // characters of one block; beyond it text stays text

function render(tokens: Token[], source: string): SafeHtml {
  if (source.length > MAX_MARKDOWN) return sanitize(`<p>${escapeHtml(source)}</p>`);
  try {
    return sanitize(marked.parser(tokens));
  } catch {
    return sanitize(`<p>${escapeHtml(source)}</p>`); // nested beyond what the parser's stack holds
  }
}

export interface Block {
  readonly key: number;
  readonly html: SafeHtml;
}

/**
 * Turns a text that grows into blocks. Those that cannot change any more are kept: only the end of the text is read
 * again, so that a long answer costs no more per token than a short one.
 */
export class GrowingMarkdown {
  private settled: Block[] = [];
  private from = 0;
  private text = "";
  private last: Block[] = [];

  blocks(given: string): Block[] {
    const text = given.replace(/\r\n?/g, "\n"); // as the lexer does, so that lengths agree
    if (text === this.text) return this.last;
    if (!text.startsWith(this.text)) {
      this.settled = [];
      this.from = 0;
    }
    this.text = text;
    const rest = text.slice(this.from);
    const tokens = lex(rest).filter((token) => token.type !== "space" || token.raw);
    // The last two may still change: a line that follows can belong to either.
    let settle = Math.max(0, tokens.length - 2);
    while (settle > 0 && tokens[settle - 1]!.type !== "space") settle--;
    for (const token of tokens.slice(0, settle)) {
      this.from += token.raw.length;
      if (token.type !== "space") this.settled.push({ key: this.settled.length, html: render([token], token.raw) });
    }
    const open = tokens.slice(settle).filter((token) => token.type !== "space");
    this.last = [
      ...this.settled,
      ...open.map((token, index) => ({ key: this.settled.length + index, html: render([token], token.raw) })),
    ];
    return this.last;
  }
}

function lex(text: string): Token[] {
  try {
    return marked.lexer(text);
  } catch {
    return [{ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text, escaped: false }] }];
  }
}

/** HTML of highlighted code alone. */
export function codeHtml(code: string, language: string): SafeHtml {
  return sanitize(highlight(code, language));
}
