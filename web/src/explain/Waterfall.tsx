// EXPLAIN as a waterfall: one row for each part, its time as a bar where it happened, the prediction as a mark.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { ExplainNode } from "../chat/conversation";
import { rate, seconds } from "../lib/format";
import { CopyButton } from "../lib/ui";

interface Row {
  node: ExplainNode;
  depth: number;
  startS: number;
  key: string;
}

const DETAIL_SKIPPED = new Set(["concurrent", "start_s", "advice"]);
const MAX_ROWS = 400;

/** The rows of a tree. Parts follow each other, unless a detail says when they began. */
export function rows(root: ExplainNode): Row[] {
  const found: Row[] = [];
  const walk = (node: ExplainNode, depth: number, startS: number, key: string): void => {
    found.push({ node, depth, startS, key });
    let at = startS;
    (node.children ?? []).forEach((child, index) => {
      const own = child.detail?.["start_s"];
      const isBeside = child.detail?.["concurrent"] === true;
      const childStart = isBeside && typeof own === "number" ? own : at;
      walk(child, depth + 1, childStart, `${key}.${index}`);
      if (!isBeside) at += child.measured_s;
    });
  };
  walk(root, 0, 0, "0");
  return found;
}

function said(name: string, value: unknown): string {
  if (typeof value === "number") return name.endsWith("_s") ? seconds(value) : rate(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

function details(node: ExplainNode): string {
  return Object.entries(node.detail ?? {})
    .filter(([name]) => !DETAIL_SKIPPED.has(name))
    .map(([name, value]) => `${name.replace(/_s$/, "").replaceAll("_", " ")} ${said(name, value)}`)
    .join(" · ");
}

/** What would help most, in the words of the server. */
function Advice({ tree }: { tree: ExplainNode }): JSX.Element | null {
  const given = tree.detail?.["advice"];
  const found = (Array.isArray(given) ? (given as unknown[]) : []).flatMap((one) => {
    const { lever, text } = (one ?? {}) as { lever?: unknown; text?: unknown };
    return typeof lever === "string" && typeof text === "string" ? [{ lever: lever.replaceAll("_", " "), text }] : [];
  });
  if (!found.length) return null;
  return (
    <dl class="advice" aria-label="What would help most">
      {found.map(({ lever, text }) => (
        <div key={lever}>
          <dt>{lever}</dt>
          <dd>{text}</dd>
        </div>
      ))}
    </dl>
  );
}

const comeIntoView = (box: HTMLElement | null): void => box?.scrollIntoView({ block: "nearest" });

export function Waterfall({ tree }: { tree: ExplainNode }): JSX.Element {
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const all = rows(tree);
  const total = Math.max(tree.measured_s, 1e-9);
  const shown = all.filter(({ key }) => ![...closed].some((other) => key.startsWith(`${other}.`))).slice(0, MAX_ROWS);
  const toggle = (key: string): void => {
    const next = new Set(closed);
    if (!next.delete(key)) next.add(key);
    setClosed(next);
  };
  return (
    <div class="waterfall" ref={comeIntoView}>
      <div class="table-box" tabIndex={0} role="region" aria-label="Where the time went">
        <table>
          <caption class="sr-only">Parts of the request with the time they took and the time that was predicted</caption>
          <thead>
            <tr>
              <th scope="col">Part</th>
              <th scope="col" class="num">
                Took
              </th>
              <th scope="col" class="num">
                Predicted
              </th>
              <th scope="col" class="bar-head">
                <span class="sr-only">When</span>
                <span aria-hidden="true" class="scale">
                  <span>0</span>
                  <span>{seconds(total)}</span>
                </span>
              </th>
              <th scope="col" class="details">
                Details
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map(({ node, depth, startS, key }) => (
              <tr key={key}>
                <th scope="row" class={`depth depth-${Math.min(depth, 6)}`}>
                  {node.children?.length ? (
                    <button type="button" class="fold" aria-expanded={!closed.has(key)} onClick={() => toggle(key)}>
                      {node.name}
                    </button>
                  ) : (
                    <span class="leaf">{node.name}</span>
                  )}
                </th>
                <td class="num">{seconds(node.measured_s)}</td>
                <td class="num">{node.predicted_s === undefined ? "" : seconds(node.predicted_s)}</td>
                <td class="bar-cell" aria-hidden="true">
                  <Bar node={node} startS={startS} total={total} />
                </td>
                <td class="details">{details(node)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Advice tree={tree} />
      <div class="row">
        <CopyButton label="Copy as JSON" text={() => JSON.stringify(tree, null, 2)} />
        {all.length > shown.length + closed.size && shown.length === MAX_ROWS && (
          <span class="hint">
            The first {MAX_ROWS} of {all.length} parts.
          </span>
        )}
      </div>
    </div>
  );
}

function Bar({ node, startS, total }: { node: ExplainNode; startS: number; total: number }): JSX.Element {
  const share = (value: number): string => `${Math.max(0, Math.min(100, (value / total) * 100))}%`;
  return (
    <div class="bar-track">
      <div class={`bar bar-${kindOf(node.name)}`} style={{ left: share(startS), width: share(node.measured_s) }} />
      {node.predicted_s !== undefined && <div class="bar-mark" style={{ left: share(startS + node.predicted_s) }} />}
    </div>
  );
}

function kindOf(name: string): string {
  const first = name.split(" ")[0]!;
  if (["queue", "wait", "acquire", "other"].includes(first)) return "wait";
  return ["decode", "encode"].includes(first) ? "decode" : first === "prefill" ? "prefill" : "work";
}
