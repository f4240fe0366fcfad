// The processes that serve a model, as `headrace cluster status` shows them: nodes, load, and hits of the cache.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { percent, plural, whole } from "../lib/format";
import { ApiError, getJson, getKey, messageOf, retried } from "../lib/http";
import { Card, type Head, Table } from "../lib/tables";
import { Notice } from "../lib/ui";
import { shown } from "./feed";

interface Replica {
  replica: number;
  node: string;
  state: string;
  role: string;
  requests: number;
  running: number;
  waiting: number;
  kv_used: number;
  steps: number;
  cached_tokens: number;
  prompt_tokens: number;
}

interface ModelReplicas {
  id: string;
  policy: string;
  wanted: number;
  starting: number;
  nodes: string[];
  in_flight: number;
  waiting: number;
  hit_rate: number | null;
  attained: number | null;
  problem: string | null;
  replicas: Replica[];
}

const AGAIN_MS = 2000;
const HEADS: Head[] = ["Replica", "Node", "State", ["Requests", "num"], ["Running", "num"], ["Waiting", "num"], ["KV cache in use", "num"], ["Prefix cache", "num"], ["Steps", "num"]];

/** Of the model that is shown, or of all. Needs a key with the scope admin where the server has keys. */
export function Replicas(): JSX.Element {
  const model = shown.value;
  const [found, setFound] = useState<ModelReplicas[]>([]);
  const [refused, setRefused] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    const read = async (): Promise<void> => {
      if (document.visibilityState === "hidden") return; // nobody looks
      try {
        setFound((await getJson<{ data: ModelReplicas[] }>("v1/cluster", { signal: abort.signal })).data);
        setRefused("");
      } catch (error) {
        if (abort.signal.aborted || !(error instanceof ApiError) || error.status === 0) return; // asked again soon
        setRefused(messageOf(error));
        clearInterval(timer); // what was refused is refused again
      }
    };
    const timer = setInterval(() => void read(), AGAIN_MS);
    void read();
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [getKey(), retried.value]);
  if (refused) return <Notice kind="info">The replicas are not shown: {refused}</Notice>;
  return (
    <>
      {found
        .filter((one) => !model || one.id === model)
        .map((one) => (
          <ReplicasOf key={one.id} model={one} />
        ))}
    </>
  );
}

function ReplicasOf({ model }: { model: ModelReplicas }): JSX.Element {
  return (
    <Card title={`Replicas of ${model.id}`} note={<span class="hint">{summary(model)}</span>}>
      {model.problem && <Notice>A replica did not start: {model.problem}</Notice>}
      {model.replicas.length ? (
        <Table label={`Table of the replicas of ${model.id}`} heads={HEADS}>
          {model.replicas.map((one) => (
            <tr key={one.replica}>
              <th scope="row">{one.replica}</th>
              <td>
                <bdi>{one.node}</bdi>
              </td>
              <td>
                <span class="badge">{one.state}</span>
                {one.role !== "any" && ` ${one.role}`}
              </td>
              <td class="num">{whole(one.requests)}</td>
              <td class="num">{whole(one.running)}</td>
              <td class="num">{whole(one.waiting)}</td>
              <td class="num">{percent(one.kv_used)}</td>
              <td class="num">{percent(one.prompt_tokens ? one.cached_tokens / one.prompt_tokens : null)}</td>
              <td class="num">{whole(one.steps)}</td>
            </tr>
          ))}
        </Table>
      ) : (
        <p class="hint">{model.wanted || model.starting ? "The first one starts." : "None runs: the next request starts one."}</p>
      )}
    </Card>
  );
}

function summary(model: ModelReplicas): string {
  const count = model.replicas.length;
  return [
    plural(count, "replica") + (count === model.wanted ? "" : ` (${whole(model.wanted)} wanted)`),
    model.starting > 0 && `${whole(model.starting)} starting`,
    `on ${plural(model.nodes.length, "node")}`,
    `routed by ${model.policy}`,
    `${plural(model.in_flight, "request")}, ${whole(model.waiting)} waiting`,
    model.hit_rate !== null && `${percent(model.hit_rate)} of prompts cached`,
    model.attained !== null && `${percent(model.attained)} kept the targets`,
  ]
    .filter(Boolean)
    .join(" · ");
}
