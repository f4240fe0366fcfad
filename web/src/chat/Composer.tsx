import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { bytes } from "../lib/format";
import { Button, Icon, Notice } from "../lib/ui";
import type { Attachment } from "./conversation";
import { current, running, send, stop, version } from "./state";

const MAX_FILE_BYTES = 512 * 1024;
const MAX_FILES = 10;
const drafts = new Map<string, string>();

export function Composer(): JSX.Element {
  void version.value;
  const box = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const [files, setFiles] = useState<Attachment[]>([]);
  const [problem, setProblem] = useState("");
  const [isEmpty, setEmpty] = useState(true);
  const id = current.value.id;
  const isRunning = running.value !== null;

  const grow = (): void => {
    const element = box.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, 280)}px`;
    setEmpty(!element.value.trim());
    drafts.set(id, element.value);
  };

  const submit = (): void => {
    const text = box.current?.value ?? "";
    if (isRunning || (!text.trim() && !files.length)) return;
    box.current!.value = "";
    grow();
    setFiles([]);
    setProblem("");
    send(text, files);
    box.current!.focus();
  };

  const attach = async (given: Iterable<File>): Promise<void> => {
    const read: Attachment[] = [];
    const refused: string[] = [];
    for (const file of given) {
      const found = await readText(file);
      if (typeof found === "string") refused.push(found);
      else read.push(found);
    }
    const all = [...files, ...read];
    if (all.length > MAX_FILES) refused.push(`Only ${MAX_FILES} files go with a message.`);
    setFiles(all.slice(0, MAX_FILES));
    setProblem(refused.join(" "));
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void attach(event.dataTransfer?.files ?? []);
      }}
    >
      {problem && <Notice>{problem}</Notice>}
      {files.length > 0 && (
        <ul class="chips" aria-label="Attached files">
          {files.map((file, index) => (
            <li key={index}>
              <Icon name="file" />
              <bdi>{file.name}</bdi>
              <Button label={`Remove ${file.name}`} icon="close" kind="quiet" hideText onClick={() => setFiles(files.filter((_, other) => other !== index))} />
            </li>
          ))}
        </ul>
      )}
      <div class="composer-box">
        <textarea
          key={id}
          ref={box}
          id="composer"
          rows={1}
          aria-label="Message"
          placeholder="Ask something"
          defaultValue={drafts.get(id) ?? ""}
          onInput={grow}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              submit();
            }
            if (event.key === "Escape" && isRunning) stop();
          }}
        />
        <div class="composer-row">
          <input
            ref={picker}
            type="file"
            multiple
            class="sr-only"
            tabIndex={-1}
            aria-hidden="true"
            onChange={(event) => {
              void attach([...(event.currentTarget.files ?? [])]);
              event.currentTarget.value = "";
            }}
          />
          <Button label="Attach text files" icon="clip" kind="quiet" hideText onClick={() => picker.current?.click()} />
          <span class="hint grow">Enter sends, Shift+Enter starts a line</span>
          {isRunning ? (
            <Button label="Stop" icon="stop" kind="main" onClick={stop} />
          ) : (
            <Button label="Send" icon="send" kind="main" type="submit" hideText disabled={isEmpty && !files.length} />
          )}
        </div>
      </div>
    </form>
  );
}

/** A text file, or why it is none. */
async function readText(file: File): Promise<Attachment | string> {
  if (file.size > MAX_FILE_BYTES) return `${file.name} has ${bytes(file.size)}, at most ${bytes(MAX_FILE_BYTES)} go with a message.`;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) return `${file.name} is not a text file.`;
    return { name: file.name.slice(0, 200), text };
  } catch {
    return `${file.name} is not a text file in UTF-8.`;
  }
}
