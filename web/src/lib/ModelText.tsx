import { Component, type JSX } from "preact";
import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { GrowingMarkdown, SafeHtml } from "./markdown";
import { copyText } from "./ui";

/** What makes HTML of Markdown is half of the page: it is read when there is something to show. */
const renderer = signal<typeof import("./markdown") | null>(null);
let isAsked = false;

function needed(): typeof import("./markdown") | null {
  if (!isAsked) {
    isAsked = true;
    import("./markdown").then(
      (found) => (renderer.value = found),
      () => (isAsked = false), // the next text tries again; until then it is shown as it is
    );
  }
  return renderer.value;
}

class BlockView extends Component<{ html: SafeHtml }> {
  override shouldComponentUpdate({ html }: { html: SafeHtml }): boolean {
    return String(html.__html) !== String(this.props.html.__html);
  }

  override render(): JSX.Element {
    return <div dangerouslySetInnerHTML={this.props.html} />;
  }
}

/** A text of a model. It may grow: only its end is read again. */
export function Markdown({ text }: { text: string }): JSX.Element {
  const growing = useRef<GrowingMarkdown | null>(null);
  const module = needed();
  if (!module)
    return (
      <div class="prose">
        <p class="plain">{text}</p>
      </div>
    );
  growing.current ??= new module.GrowingMarkdown();
  return (
    <div class="prose" onClick={copyCode}>
      {growing.current.blocks(text).map((block) => (
        <BlockView key={block.key} html={block.html} />
      ))}
    </div>
  );
}

/** JSON of a model in color. */
export function Json({ text }: { text: string }): JSX.Element {
  const module = needed();
  return module ? <code key="colored" dangerouslySetInnerHTML={module.codeHtml(text, "json")} /> : <code>{text}</code>;
}

/** The buttons inside of rendered Markdown have no handlers of their own. */
function copyCode(event: MouseEvent): void {
  const button = (event.target as Element).closest<HTMLButtonElement>("button[data-copy]");
  const code = button?.closest(".code")?.querySelector("code");
  if (!button || !code) return;
  void copyText(code.textContent ?? "").then((done) => {
    button.textContent = done ? "Copied" : "Not allowed here";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}
