import type { JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Waterfall } from "../explain/Waterfall";
import { rate, seconds, whole } from "../lib/format";
import { Json, Markdown } from "../lib/ModelText";
import { Button, CopyButton, Field, Icon, Notice } from "../lib/ui";
import { type AnswerFacts, type ChatNode, pairOf, siblings, type ToolCall } from "./conversation";
import { current, edit, giveResults, goOn, regenerate, running, shape, showBranch, version } from "./state";

export function Message({ node, isLast }: { node: ChatNode; isLast: boolean }): JSX.Element | null {
  // Messages are changed in place: what they show anew is asked for here.
  void shape.value;
  if (node.role === "tool") return <Results node={node} />;
  if (node.role === "user") return <Question node={node} />;
  const pair = pairOf(current.value, node);
  if (pair.length === 1) return <Answer node={node} isLast={isLast} />;
  return (
    <div class="pair" role="group" aria-label="Answers of two models">
      {pair.map((one) => (
        <div key={one.id} class={`half ${one.id === node.id ? "chosen" : ""}`}>
          <Answer node={one} isLast={isLast && one.id === node.id} hasVersions={one.id === node.id} />
          {one.id === node.id ? (
            <p class="hint">The conversation goes on with this one.</p>
          ) : (
            <Button label="Go on with this one" kind="quiet" disabled={running.value !== null} onClick={() => showBranch(one)} />
          )}
        </div>
      ))}
    </div>
  );
}

function Question({ node }: { node: ChatNode }): JSX.Element {
  const [isEdited, setEdited] = useState(false);
  const trigger = useRef<HTMLDivElement>(null);
  const done = (text?: string): void => {
    setEdited(false);
    if (text !== undefined && text.trim()) edit(node, text);
    else requestAnimationFrame(() => trigger.current?.querySelector<HTMLButtonElement>("button[aria-label='Edit']")?.focus());
  };
  return (
    <article class="message user" aria-label="You">
      <div class="bubble">
        {node.files?.map((file) => (
          <details class="file" key={file.name}>
            <summary>
              <Icon name="file" />
              <bdi>{file.name}</bdi>
            </summary>
            <pre tabIndex={0}>{file.text.slice(0, 20_000)}</pre>
          </details>
        ))}
        {isEdited ? <Editor text={node.content} onDone={done} /> : <p class="plain">{node.content}</p>}
      </div>
      <div class="actions" ref={trigger}>
        <Branches node={node} />
        {!isEdited && <Button label="Edit" icon="edit" kind="quiet" hideText onClick={() => setEdited(true)} />}
      </div>
    </article>
  );
}

function Editor({ text, onDone }: { text: string; onDone: (text?: string) => void }): JSX.Element {
  const box = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => box.current?.focus(), []); // at once: what had the focus is gone
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        onDone(box.current?.value);
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape") onDone();
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) onDone(box.current?.value);
      }}
    >
      <textarea ref={box} aria-label="Edit your message" rows={Math.min(12, text.split("\n").length + 1)} defaultValue={text} />
      <div class="row">
        <Button label="Send" kind="main" type="submit" />
        <Button label="Cancel" onClick={() => onDone()} />
      </div>
    </form>
  );
}

function Answer({ node, isLast, hasVersions = true }: { node: ChatNode; isLast: boolean; hasVersions?: boolean }): JSX.Element {
  const isRunning = running.value?.ids.has(node.id) ?? false;
  if (isRunning) void version.value;
  void shape.value;
  const [isExplained, setExplained] = useState(false);
  const hasNothing = !node.content && !node.reasoning && !node.calls?.length;
  return (
    <article class="message assistant" aria-label={`Answer of ${node.facts?.model || "the model"}`} aria-busy={isRunning}>
      {node.reasoning && (
        <details class="reasoning" open={isRunning && !node.content}>
          <summary>{isRunning && !node.content ? "Thinking…" : "Reasoning"}</summary>
          <Markdown text={node.reasoning} />
        </details>
      )}
      {node.structured && looksLikeJson(node.content) ? <Structured text={node.content} isDone={!isRunning} /> : node.content && <Markdown text={node.content} />}
      {isRunning && hasNothing && (
        <p class="waiting">
          <span class="dots" aria-hidden="true" /> Waiting for the first token
        </p>
      )}
      {node.calls?.length ? <Calls node={node} calls={node.calls} isOpen={isLast && !isRunning} /> : null}
      {node.error && (
        <Notice>
          <p>{node.error}</p>
          {isLast && (
            <div class="row">
              {node.content && !node.structured && <Button label="Continue the answer" onClick={() => goOn(node)} />}
              <Button label="Try again" onClick={() => regenerate(node)} />
            </div>
          )}
        </Notice>
      )}
      {node.facts?.warnings?.map((warning) => (
        <Notice kind="info" key={warning}>
          {warning}
        </Notice>
      ))}
      {!isRunning && (
        <div class="actions">
          {hasVersions && <Branches node={node} />}
          {node.content && <CopyButton text={() => node.content} />}
          <Button label="Regenerate" icon="again" kind="quiet" onClick={() => regenerate(node)} />
          {node.explain && <Button label="Explain" icon="live" kind="quiet" expanded={isExplained} onClick={() => setExplained(!isExplained)} />}
          {node.facts && <Facts facts={node.facts} />}
        </div>
      )}
      {isRunning && node.facts && <Facts facts={node.facts} />}
      {isExplained && node.explain && <Waterfall tree={node.explain} />}
    </article>
  );
}

function looksLikeJson(text: string): boolean {
  return /^\s*[[{"\d-]/.test(text);
}

/** JSON as it arrives; with line ends of its own once it is whole. */
function Structured({ text, isDone }: { text: string; isDone: boolean }): JSX.Element {
  return (
    <div class="code">
      <div class="code-head">
        <span>json</span>
        <CopyButton text={() => text} />
      </div>
      <pre tabIndex={0} role="region" aria-label="Structured answer">
        <Json text={isDone ? pretty(text) : text} />
      </pre>
    </div>
  );
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Calls of tools. Nothing is run from here: who reads it gives the results. */
function Calls({ node, calls, isOpen }: { node: ChatNode; calls: ToolCall[]; isOpen: boolean }): JSX.Element {
  const form = useRef<HTMLFormElement>(null);
  const submit = (event: Event): void => {
    event.preventDefault();
    const boxes = [...(form.current?.querySelectorAll("textarea") ?? [])];
    giveResults(
      node,
      calls.map((one, index) => ({ id: one.id, name: one.name, content: boxes[index]?.value ?? "" })),
    );
  };
  return (
    <form class="calls" ref={form} onSubmit={submit}>
      {calls.map((one, index) => (
        <section class="card" key={one.id || index} aria-label={`Call of ${one.name}`}>
          <h3>
            <Icon name="tool" /> <bdi>{one.name}</bdi>
          </h3>
          <pre tabIndex={0} role="region" aria-label="Arguments">
            <Json text={pretty(one.arguments)} />
          </pre>
          {isOpen && <Field label="Result">{(id) => <textarea id={id} rows={2} required placeholder="What the tool gave" />}</Field>}
        </section>
      ))}
      {isOpen && <Button label="Send the results" kind="main" type="submit" />}
    </form>
  );
}

function Results({ node }: { node: ChatNode }): JSX.Element {
  return (
    <article class="message tool" aria-label="Results of tools">
      {node.results?.map((one) => (
        <section class="card" key={one.id}>
          <h3>
            <Icon name="tool" /> Result of <bdi>{one.name}</bdi>
          </h3>
          <pre tabIndex={0}>{one.content}</pre>
        </section>
      ))}
    </article>
  );
}

function Branches({ node }: { node: ChatNode }): JSX.Element | null {
  void shape.value;
  const all = siblings(current.value, node);
  if (all.length < 2) return null;
  const at = all.findIndex((other) => other.id === node.id);
  const go = (step: number): void => {
    const other = all[at + step];
    if (other) showBranch(other);
  };
  return (
    <div class="branches" role="group" aria-label="Versions">
      <Button label="Previous version" icon="left" kind="quiet" hideText disabled={at === 0} onClick={() => go(-1)} />
      <span>
        {at + 1} <span aria-hidden="true">/</span> <span class="sr-only">of</span> {all.length}
      </span>
      <Button label="Next version" icon="right" kind="quiet" hideText disabled={at === all.length - 1} onClick={() => go(1)} />
    </div>
  );
}

const FINISHES: Record<string, string> = {
  length: "reached the limit of tokens",
  stopped: "stopped by you",
  content_filter: "ended by a guard",
};

/** Tokens a second as this browser has seen them, where the server does not say. */
function seenSpeed({ completionTokens = 0, totalS = 0, firstTokenS = 0 }: AnswerFacts): number | null {
  return completionTokens > 1 && totalS > firstTokenS ? (completionTokens - 1) / (totalS - firstTokenS) : null;
}

function Facts({ facts }: { facts: AnswerFacts }): JSX.Element {
  const speed = facts.tokensPerS ?? seenSpeed(facts);
  const parts: [string, string][] = [];
  if (facts.model) parts.push(["Model", facts.model]);
  if (facts.promptTokens !== undefined)
    parts.push(["Prompt", `${whole(facts.promptTokens)} tokens in${facts.cachedTokens ? ` (${whole(facts.cachedTokens)} cached)` : ""}`]);
  if (facts.completionTokens !== undefined) parts.push(["Answer", `${whole(facts.completionTokens)} out`]);
  if (speed !== null) parts.push(["Speed", `${rate(speed)} tokens/s`]);
  if (facts.firstTokenS !== undefined) parts.push(["First token", `first after ${seconds(facts.firstTokenS)}`]);
  if (facts.totalS !== undefined) parts.push(["Total", `${seconds(facts.totalS)} in all`]);
  const finish = FINISHES[facts.finish ?? ""];
  if (finish) parts.push(["End", finish]);
  return (
    <ul class="facts" aria-label="Figures of this answer">
      {parts.map(([name, value]) => (
        <li key={name} title={name}>
          {value}
        </li>
      ))}
    </ul>
  );
}
