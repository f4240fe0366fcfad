import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { ExplainNode } from "../chat/conversation";
import { Waterfall } from "../explain/Waterfall";
import { models } from "../chat/state";
import { day, seconds, time, whole } from "../lib/format";
import { getJson, messageOf, retried } from "../lib/http";
import { Facts, type Head, Table } from "../lib/tables";
import { Button, CopyButton, Notice } from "../lib/ui";

const PAGE = 50;

const STATUSES = ["completed", "failed", "cancelled"];
const HEADS: Head[] = ["When", "Endpoint", "Model", "Status", ["In", "num"], ["Out", "num"], ["First token", "num"], ["Took", "num"]];

interface Entry {
  id: string;
  created: number;
  endpoint: string;
  model: string | null;
  status: string;
  http_status: number;
  error: string | null;
  input_tokens: number | null;
  cached_tokens: number | null;
  output_tokens: number | null;
  duration_s: number;
  ttft_s: number | null;
  key: string | null;
  trace_id: string | null;
  body?: string | null;
}

interface Page {
  data: Entry[];
  has_more: boolean;
  last_id: string | null;
}

export function Requests(): JSX.Element {
  const [entries, setEntries] = useState<Entry[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [error, setError] = useState("");
  const [isRead, setRead] = useState(false);
  const [query, setQuery] = useState("");
  const [endpoint, setEndpoint] = useState("");
  const [model, setModel] = useState("");
  const [status, setStatus] = useState("");
  const [opened, setOpened] = useState<string | null>(null);
  const [endpoints, setEndpoints] = useState<string[]>([]);

  const read = async (after?: string): Promise<void> => {
    const chosen = new URLSearchParams({ limit: String(PAGE) });
    for (const [name, value] of Object.entries({ endpoint, model, status, after })) if (value) chosen.set(name, value);
    try {
      const page = await getJson<Page>(`v1/requests?${chosen.toString()}`);
      setEntries((before) => (after ? [...before, ...page.data] : page.data));
      setEndpoints((before) => [...new Set([...before, ...page.data.map((one) => one.endpoint)])].sort());
      setNext(page.has_more ? page.last_id : null);
      setError("");
    } catch (failure) {
      setError(messageOf(failure));
    }
    setRead(true);
  };
  const again = retried.value;
  useEffect(() => void read(), [again, endpoint, model, status]);

  const words = query.toLowerCase();
  const shown = entries.filter((one) => !words || `${one.id} ${one.key ?? ""} ${one.error ?? ""} ${one.trace_id ?? ""}`.toLowerCase().includes(words));
  const isFiltered = Boolean(endpoint || model || status);
  return (
    <div class="pane">
      <div class="pane-head">
        <h1>Requests</h1>
        <span class="grow" />
        <Button label="Refresh" icon="again" onClick={() => void read()} />
      </div>
      {error && <Notice>{error}</Notice>}
      <div class="filters" role="search" aria-label="Filter requests">
        <input type="search" aria-label="Find by id, key, error or trace" placeholder="Id, key, error or trace" value={query} onInput={(event) => setQuery(event.currentTarget.value)} />
        <select aria-label="Endpoint" value={endpoint} onChange={(event) => setEndpoint(event.currentTarget.value)}>
          <option value="">all endpoints</option>
          {endpoints.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
        <select aria-label="Model" value={model} onChange={(event) => setModel(event.currentTarget.value)}>
          <option value="">all models</option>
          {models.value.map((one) => (
            <option key={one.id}>{one.id}</option>
          ))}
        </select>
        <select aria-label="Status" value={status} onChange={(event) => setStatus(event.currentTarget.value)}>
          <option value="">all outcomes</option>
          {STATUSES.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      </div>
      {isRead && !error && !entries.length && <p class="hint">{isFiltered ? "None fits the filter." : "No request has ended yet."}</p>}
      {entries.length > 0 && (
        <div class="card">
          <Table label="Requests" kind="log" heads={HEADS}>
            {shown.map((one) => [
              <tr key={one.id} class={opened === one.id ? "opened" : ""}>
                <th scope="row">
                  <button type="button" class="fold" aria-expanded={opened === one.id} onClick={() => setOpened(opened === one.id ? null : one.id)}>
                    <span class="sr-only">Explain the request of </span>
                    {when(one.created)}
                  </button>
                </th>
                <td class="mono">{one.endpoint}</td>
                <td>
                  <bdi>{one.model ?? "–"}</bdi>
                </td>
                <td>
                  <span class={`badge ${one.status}`}>{one.status}</span>
                </td>
                <td class="num">{counted(one.input_tokens)}</td>
                <td class="num">{counted(one.output_tokens)}</td>
                <td class="num">{seconds(one.ttft_s)}</td>
                <td class="num">{seconds(one.duration_s)}</td>
              </tr>,
              opened === one.id && (
                <tr key={`${one.id}-explained`}>
                  <td colSpan={HEADS.length}>
                    <Opened entry={one} />
                  </td>
                </tr>
              ),
            ])}
          </Table>
          {!shown.length && <p class="hint">None of {whole(entries.length)} requests fits the filter.</p>}
          {next && (
            <div class="row">
              <Button label="Show more" onClick={() => void read(next)} />
            </div>
          )}
        </div>
      )}
    </div>
  );
}

function when(createdS: number): string {
  const date = day(createdS * 1000);
  return date === "Today" ? time(createdS * 1000) : `${date}, ${time(createdS * 1000)}`;
}

function counted(value: number | null): string {
  return value === null ? "–" : whole(value);
}

function Opened({ entry }: { entry: Entry }): JSX.Element {
  const [tree, setTree] = useState<ExplainNode | null>(null);
  const [said, say] = useState("");
  const [body, setBody] = useState<string | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    const path = `v1/requests/${encodeURIComponent(entry.id)}`;
    const read = async (): Promise<void> => {
      try {
        setBody((await getJson<Entry>(path, { signal: abort.signal })).body ?? null);
        setTree(await getJson<ExplainNode>(`${path}/explain`, { signal: abort.signal }));
      } catch (error) {
        if (!abort.signal.aborted) say(messageOf(error));
      }
    };
    void read();
    return () => abort.abort();
  }, [entry.id]);
  const facts: [string, string | null][] = [
    ["Request", entry.id],
    ["Trace", entry.trace_id],
    ["Key", entry.key],
    ["HTTP status", String(entry.http_status)],
    ["Cached tokens", entry.cached_tokens === null ? null : whole(entry.cached_tokens)],
    ["Error", entry.error],
  ];
  return (
    <div class="trial">
      <Facts facts={facts} kind="mono" />
      {tree ? <Waterfall tree={tree} /> : <p class="hint">{said || "Reading…"}</p>}
      {body !== null && <Replay endpoint={entry.endpoint} body={body} />}
    </div>
  );
}

/** What the client sent, where the server keeps it, to be sent again. */
function Replay({ endpoint, body }: { endpoint: string; body: string }): JSX.Element {
  const [reply, setReply] = useState("");
  const [error, setError] = useState("");
  const replay = async (): Promise<void> => {
    setError("");
    try {
      const sent = JSON.parse(body) as Record<string, unknown>;
      const found = await getJson<unknown>(endpoint.replace(/^\//, ""), { body: "stream" in sent ? { ...sent, stream: false, stream_options: undefined } : sent });
      setReply(JSON.stringify(found, null, 2));
    } catch (failure) {
      setError(messageOf(failure));
    }
  };
  return (
    <details>
      <summary>What was sent</summary>
      <div class="trial">
        <pre class="code-box" tabIndex={0} role="region" aria-label="What was sent">
          {body.slice(0, 20_000)}
        </pre>
        <div class="row">
          <Button label="Send it again" icon="again" onClick={() => void replay()} />
          <CopyButton text={() => body} />
        </div>
        {error && <Notice>{error}</Notice>}
        {reply && (
          <pre class="code-box" tabIndex={0} role="region" aria-label="The new reply">
            {reply.slice(0, 20_000)}
          </pre>
        )}
      </div>
    </details>
  );
}
