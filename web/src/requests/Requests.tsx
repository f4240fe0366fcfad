import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { ExplainNode } from "../chat/conversation";
import { Waterfall } from "../explain/Waterfall";
import { seconds, time, whole } from "../lib/format";
import { ApiError, call, getJson, messageOf, retried } from "../lib/http";
import { Button, CopyButton, Notice } from "../lib/ui";

const PAGE = 50;

interface Entry {
  id: string;
  created: number;
  endpoint: string;
  model: string | null;
  status: number;
  input_tokens: number | null;
  output_tokens: number | null;
  duration_s: number | null;
  ttft_s: number | null;
}

interface Page {
  data: Entry[];
  has_more: boolean;
  last_id: string | null;
}

export function Requests(): JSX.Element {
  const [entries, setEntries] = useState<Entry[]>([]);
  const [hasMore, setMore] = useState(false);
  const [error, setError] = useState("");
  const [isRead, setRead] = useState(false);
  const [query, setQuery] = useState("");
  const [endpoint, setEndpoint] = useState("");
  const [outcome, setOutcome] = useState("");
  const [opened, setOpened] = useState<string | null>(null);

  const read = async (after?: string): Promise<void> => {
    try {
      const page = await getJson<Page>(`v1/requests?limit=${PAGE}${after ? `&after=${encodeURIComponent(after)}` : ""}`);
      setEntries((before) => (after ? [...before, ...page.data] : page.data));
      setMore(page.has_more);
      setError("");
    } catch (failure) {
      setError(messageOf(failure));
    }
    setRead(true);
  };
  const again = retried.value;
  useEffect(() => void read(), [again]);

  const endpoints = [...new Set(entries.map((one) => one.endpoint))].sort();
  const words = query.toLowerCase();
  const shown = entries.filter(
    (one) =>
      (!endpoint || one.endpoint === endpoint) &&
      (!outcome || (outcome === "ok") === isOk(one.status)) &&
      (!words || `${one.id} ${one.model ?? ""} ${one.endpoint} ${one.status}`.toLowerCase().includes(words)),
  );
  return (
    <div class="pane">
      <div class="pane-head">
        <h1>Requests</h1>
        <span class="grow" />
        <Button label="Refresh" icon="again" onClick={() => void read()} />
      </div>
      {error && <Notice>{error}</Notice>}
      <div class="filters" role="search" aria-label="Filter requests">
        <input type="search" aria-label="Filter by id, model or status" placeholder="Filter by id, model or status" value={query} onInput={(event) => setQuery(event.currentTarget.value)} />
        <select aria-label="Endpoint" value={endpoint} onChange={(event) => setEndpoint(event.currentTarget.value)}>
          <option value="">all endpoints</option>
          {endpoints.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
        <select aria-label="Outcome" value={outcome} onChange={(event) => setOutcome(event.currentTarget.value)}>
          <option value="">all outcomes</option>
          <option value="ok">succeeded</option>
          <option value="failed">failed</option>
        </select>
      </div>
      {isRead && !error && !entries.length && <p class="hint">No requests yet. The server keeps them where it runs with --log-requests.</p>}
      {entries.length > 0 && (
        <div class="card">
          <div class="table-box" tabIndex={0} role="region" aria-label="Requests">
            <table class="log">
              <thead>
                <tr>
                  <th scope="col">When</th>
                  <th scope="col">Endpoint</th>
                  <th scope="col">Model</th>
                  <th scope="col">Status</th>
                  <th scope="col" class="num">
                    In
                  </th>
                  <th scope="col" class="num">
                    Out
                  </th>
                  <th scope="col" class="num">
                    First token
                  </th>
                  <th scope="col" class="num">
                    Took
                  </th>
                </tr>
              </thead>
              <tbody>
                {shown.map((one) => [
                  <tr key={one.id} class={opened === one.id ? "opened" : ""}>
                    <th scope="row">
                      <button type="button" class="fold" aria-expanded={opened === one.id} onClick={() => setOpened(opened === one.id ? null : one.id)}>
                        <span class="sr-only">Explain the request of </span>
                        {time(one.created * 1000)}
                      </button>
                    </th>
                    <td class="mono">{one.endpoint}</td>
                    <td>
                      <bdi>{one.model ?? "–"}</bdi>
                    </td>
                    <td>
                      <span class={`badge ${isOk(one.status) ? "ok" : "error"}`}>{one.status}</span>
                    </td>
                    <td class="num">{counted(one.input_tokens)}</td>
                    <td class="num">{counted(one.output_tokens)}</td>
                    <td class="num">{seconds(one.ttft_s)}</td>
                    <td class="num">{seconds(one.duration_s)}</td>
                  </tr>,
                  opened === one.id && (
                    <tr key={`${one.id}-explained`}>
                      <td colSpan={8}>
                        <Opened entry={one} />
                      </td>
                    </tr>
                  ),
                ])}
              </tbody>
            </table>
          </div>
          {!shown.length && <p class="hint">None of {whole(entries.length)} requests fits the filter.</p>}
          {hasMore && (
            <div class="row">
              <Button label="Show more" onClick={() => void read(entries.at(-1)?.id)} />
            </div>
          )}
        </div>
      )}
    </div>
  );
}

function isOk(status: number): boolean {
  return status < 400;
}

function counted(value: number | null): string {
  return value === null ? "–" : whole(value);
}

function Opened({ entry }: { entry: Entry }): JSX.Element {
  const [tree, setTree] = useState<ExplainNode | null>(null);
  const [said, say] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    const read = async (): Promise<void> => {
      try {
        const reply = await call(`v1/requests/${encodeURIComponent(entry.id)}/explain`, { signal: abort.signal });
        const found = (await reply.json()) as ExplainNode & { explain?: ExplainNode };
        setTree(found.explain ?? found);
      } catch (error) {
        if (!abort.signal.aborted) say(error instanceof ApiError && error.status === 404 ? "Of this request no tree was kept." : messageOf(error));
      }
    };
    void read();
    return () => abort.abort();
  }, [entry.id]);
  return (
    <div class="trial">
      <div class="row">
        <span class="mono">{entry.id}</span>
        <CopyButton label="Copy the id" text={() => entry.id} />
      </div>
      {tree ? <Waterfall tree={tree} /> : <p class="hint">{said || "Reading…"}</p>}
    </div>
  );
}
