import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { whole } from "../lib/format";
import { Button, Notice } from "../lib/ui";
import { Composer } from "./Composer";
import { branch, type ChatNode, pairOf } from "./conversation";
import { Conversations } from "./Conversations";
import { Message } from "./Message";
import { Options } from "./Options";
import { current, models, modelsFailure, running, setModel, spoken, stop, version } from "./state";

const NEAR_END = 80; // pixels: who has scrolled further up is not moved
const EXAMPLES = ["extract a gzipped tar archive", "list files by size", "find all python files changed today"];

export function Chat(): JSX.Element {
  void version.value;
  const isWide = matchMedia("(min-width: 60rem)").matches;
  const [hasList, setList] = useState(isWide);
  const [hasOptions, setOptions] = useState(false);
  const nodes = branch(current.value);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.key === "Escape" && running.value && !document.querySelector("dialog[open]")) stop();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <div class={`chat ${hasList ? "with-list" : ""} ${hasOptions ? "with-options" : ""}`}>
      {hasList && <Conversations onChosen={() => !matchMedia("(min-width: 60rem)").matches && setList(false)} />}
      <section class="talk" aria-label="Chat">
        <div class="talk-head">
          <Button label="Conversations" icon="menu" kind="quiet" hideText expanded={hasList} onClick={() => setList(!hasList)} />
          <h1 class="sr-only">Chat</h1>
          <ModelChoice />
          <span class="grow" />
          <ContextUse nodes={nodes} />
          <Button label="Options" icon="tune" kind="quiet" expanded={hasOptions} onClick={() => setOptions(!hasOptions)} />
        </div>
        <Messages nodes={nodes} />
        <Composer />
        <div class="sr-only" role="log" aria-live="polite" aria-label="Answer as it arrives">
          {spoken.value.map((part, index) => (
            <p key={index}>{part}</p>
          ))}
        </div>
      </section>
      {hasOptions && <Options onClose={() => setOptions(false)} />}
    </div>
  );
}

function ModelChoice(): JSX.Element {
  const chosen = current.value.model;
  const known = models.value;
  return (
    <>
      <select class="model" aria-label="Model" value={chosen || known[0]?.id} onChange={(event) => setModel(event.currentTarget.value)}>
        {!known.length && <option value="">{modelsFailure.value ? "no models" : "…"}</option>}
        {chosen && !known.some((one) => one.id === chosen) && <option value={chosen}>{chosen}</option>}
        {known.map((one) => (
          <option key={one.id} value={one.id}>
            {one.id}
            {one.state === "loaded" || one.state === "remote" ? "" : ` (${one.state})`}
          </option>
        ))}
      </select>
    </>
  );
}

/** How much of the model's context the last answer has used. */
function ContextUse({ nodes }: { nodes: ChatNode[] }): JSX.Element | null {
  const last = nodes.findLast((node) => node.facts?.promptTokens !== undefined);
  const model = models.value.find((one) => one.id === (current.value.model || models.value[0]?.id));
  if (!last?.facts || !model?.context_length) return null;
  const used = (last.facts.promptTokens ?? 0) + (last.facts.completionTokens ?? 0);
  return (
    <span class="context" title="Context used by this conversation">
      <meter min={0} max={model.context_length} high={model.context_length * 0.85} value={used} aria-label="Context used" />
      <span class="wide-only">
        {whole(used)} of {whole(model.context_length)} tokens
      </span>
    </span>
  );
}

function Messages({ nodes }: { nodes: ChatNode[] }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  return (
    <div
      class="messages"
      ref={box}
      tabIndex={0}
      role="region"
      aria-label="Messages"
      onScroll={({ currentTarget: area }) => (isAtEnd.current = area.scrollHeight - area.scrollTop - area.clientHeight < NEAR_END)}
    >
      <div class="column">
        {modelsFailure.value && <Notice>{modelsFailure.value}</Notice>}
        {!nodes.length && <Welcome />}
        {nodes.map((node, index) => (
          <Message key={pairOf(current.value, node)[0]!.id} node={node} isLast={index === nodes.length - 1} />
        ))}
      </div>
    </div>
  );
}

function Welcome(): JSX.Element {
  const use = (text: string): void => {
    const box = document.getElementById("composer") as HTMLTextAreaElement | null;
    if (!box) return;
    box.value = text;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    box.focus();
  };
  return (
    <div class="welcome">
      <h2>What would you like to know?</h2>
      <p>Conversations are kept in this browser. Models, tools and parameters are under Options.</p>
      <ul>
        {EXAMPLES.map((text) => (
          <li key={text}>
            <button type="button" onClick={() => use(text)}>
              {text}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
