import type { JSX } from "preact";
import { memo } from "preact/compat";
import { useRef } from "preact/hooks";
import { type Block, GrowingMarkdown, type SafeHtml } from "./markdown";
import { copyText } from "./ui";

const BlockView = memo(
  ({ html }: { html: SafeHtml }) => <div dangerouslySetInnerHTML={html} />,
  (one, other) => String(one.html.__html) === String(other.html.__html),
);

/** A text of a model. It may grow: only its end is read again. */
export function Markdown({ text }: { text: string }): JSX.Element {
  const growing = useRef<GrowingMarkdown | null>(null);
  growing.current ??= new GrowingMarkdown();
  const blocks: Block[] = growing.current.blocks(text);
  return (
    <div class="prose" onClick={copyCode}>
      {blocks.map((block) => (
        <BlockView key={block.key} html={block.html} />
      ))}
    </div>
  );
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
