import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { bytes, percent, plural, rate, seconds, whole } from "../lib/format";
import { getKey, retried } from "../lib/http";
import { Later } from "../lib/Later";
import { Card, type Head, Table, Tiles } from "../lib/tables";
import { Notice } from "../lib/ui";
import { Chart } from "./Chart";
import { failure, follow, history, latest, type LiveEvent, type LiveModel, percentile, rates, recent, share, shown, state, sum } from "./feed";

const CELLS = 240; // of the map of pages
const LATENCIES: [title: string, what: (model: LiveModel) => number[]][] = [
  ["Time to first token", (one) => one.first_token],
  ["Time between tokens", (one) => one.between_tokens],
];
const LEGEND = [
  ["used", "in use"],
  ["cached", "kept for prompts to come"],
  ["free", "free"],
];

export function Live(): JSX.Element {
  const event = latest.value;
  void retried.value;
  useEffect(() => {
    let abort = new AbortController();
    const start = (): void => {
      abort.abort();
      if (document.visibilityState === "hidden") return; // nobody looks
      abort = new AbortController();
      void follow(abort.signal);
    };
    start();
    document.addEventListener("visibilitychange", start);
    return () => {
      document.removeEventListener("visibilitychange", start);
      abort.abort();
    };
  }, [getKey()]);
  const name = event?.models.some((one) => one.name === shown.value) ? shown.value : "";
  return (
    <div class="pane">
      <div class="pane-head">
        <h1>Live</h1>
        <Connection />
        <span class="grow" />
        {event && event.models.length > 1 && (
          <select aria-label="Model" value={name} onChange={(change) => (shown.value = change.currentTarget.value)}>
            <option value="">all models</option>
            {event.models.map((one) => (
              <option key={one.name}>{one.name}</option>
            ))}
          </select>
        )}
      </div>
      {failure.value && <Notice>{failure.value}</Notice>}
      {event ? <Figures event={event} model={name} /> : !failure.value && <p class="waiting">Waiting for the first figures</p>}
    </div>
  );
}

function Connection(): JSX.Element {
  const said = { connecting: "Connecting", live: "Live", lost: failure.value ? "Not available" : "Connecting again" }[state.value];
  return (
    <span class={`state ${state.value}`} role="status">
      {said}
    </span>
  );
}

function Figures({ event, model }: { event: LiveEvent; model: string }): JSX.Element {
  const outputs = rates(model, (one) => one.generation_tokens);
  const inputs = rates(model, (one) => one.prompt_tokens);
  const events = history().slice(1);
  const times = events.map((one) => one.now_s);
  const at = (what: (model: LiveModel) => number[], part: number): (number | null)[] => events.map((_, index) => percentile(model, what, part, index + 1));
  return (
    <>
      <Totals event={event} model={model} outputs={outputs} inputs={inputs} />
      <div class="charts">
        <Chart
          title="Tokens"
          unit="per second"
          times={times}
          series={[
            { label: "generated", color: "--line-1", values: outputs },
            { label: "read", color: "--line-2", values: inputs, isDashed: true },
          ]}
        />
        <Chart
          title="Requests"
          unit="sequences"
          times={times}
          shown={whole}
          isCount
          series={[
            { label: "running", color: "--line-1", values: events.map((one) => sum(one, model, (each) => each.running)) },
            { label: "waiting", color: "--line-3", values: events.map((one) => sum(one, model, (each) => each.waiting)), isDashed: true },
          ]}
        />
        {LATENCIES.map(([title, what]) => (
          <Chart
            key={title}
            title={title}
            unit="last minute"
            times={times}
            shown={seconds}
            series={[
              { label: "median", color: "--line-1", values: at(what, 0.5) },
              { label: "p95", color: "--line-3", values: at(what, 0.95), isDashed: true },
            ]}
          />
        ))}
      </div>
      {shownModels(event, model).some((one) => one.replicas !== null) && <Later load={async () => (await import("./Replicas")).Replicas} />}
      <PageMaps event={event} model={model} />
      <Memory event={event} model={model} />
    </>
  );
}

interface TotalsProps {
  event: LiveEvent;
  model: string;
  outputs: number[];
  inputs: number[];
}

function Totals({ event, model, outputs, inputs }: TotalsProps): JSX.Element {
  const of = (what: (one: LiveModel) => number): number => sum(event, model, what);
  const p = (what: (one: LiveModel) => number[], part: number): string => seconds(percentile(model, what, part));
  const room = of((one) => one.max_running);
  const running = of((one) => one.running);
  const read = recent(rates(model, (one) => one.steps * one.step_bytes));
  const done = recent(rates(model, (one) => (one.prompt_tokens - one.cache_hits + one.generation_tokens) * one.step_operations));
  const machine = event.machine;
  const drafted = share(model, (one) => one.accepted, (one) => one.drafted);
  const cached = share(model, (one) => one.cache_hits, (one) => one.cache_queries);
  const tiles: [string, string, string][] = [
    ["Generated", `${rate(recent(outputs))} tokens/s`, `${whole(of((one) => one.generation_tokens))} since the start`],
    ["Read", `${rate(recent(inputs))} tokens/s`, "counted when a request ends"],
    ["Time to first token", p((one) => one.first_token, 0.5), `p95 ${p((one) => one.first_token, 0.95)} · last minute`],
    ["Time per output token", p((one) => one.per_token, 0.5), `p95 ${p((one) => one.per_token, 0.95)} · last minute`],
    ["Running", `${whole(running)}`, `${whole(of((one) => one.waiting))} waiting · ${percent(room ? running / room : null)} of ${plural(room, "place")}`],
    ["Prefix cache", percent(cached), "of prompt tokens found · last minute"],
    ["Speculation", percent(drafted), "of drafted tokens accepted · last minute"],
    ["Bandwidth", percent(machine ? read / machine.read_bytes_per_s : null), machine ? bandwidthNote(event, model, read) : UNMEASURED],
    ["Arithmetic", percent(machine && machine.operations_per_s ? done / machine.operations_per_s : null), machine ? `${rate(done / 1e9)} of ${whole(machine.operations_per_s / 1e9)} Gop/s` : UNMEASURED],
  ];
  return <Tiles tiles={tiles} />;
}

const UNMEASURED = "headrace bench roofline measures it once";

function bandwidthNote(event: LiveEvent, model: string, read: number): string {
  const machine = event.machine!;
  const largest = Math.max(0, ...shownModels(event, model).map((one) => one.step_bytes));
  const said = `${bytes(read)}/s of weights, memory has ${bytes(machine.read_bytes_per_s)}/s`;
  return largest > 0 && largest < machine.cache_bytes ? `${said} · they fit the processor's cache` : said;
}

function shownModels(event: LiveEvent, name: string): LiveModel[] {
  return event.models.filter((one) => !name || one.name === name);
}

/** The pages of the KV cache, in order of their use. A cell stands for one page or for several. */
function PageMaps({ event, model }: { event: LiveEvent; model: string }): JSX.Element | null {
  const found = shownModels(event, model).filter((one) => one.pages.used + one.pages.cached + one.pages.free > 0);
  if (!found.length) return null;
  return (
    <Card title="Pages of the KV cache" note={<Legend />}>
      <div class="maps">
        {found.map((one) => (
          <PageMap key={one.name} model={one} />
        ))}
      </div>
    </Card>
  );
}

function Legend(): JSX.Element {
  return (
    <ul class="legend">
      {LEGEND.map(([kind, meaning]) => (
        <li key={kind}>
          <span class={`cell ${kind}`} aria-hidden="true" /> {meaning}
        </li>
      ))}
    </ul>
  );
}

function PageMap({ model: { name, pages } }: { model: LiveModel }): JSX.Element {
  const total = pages.used + pages.cached + pages.free;
  const cells = Math.min(CELLS, total);
  const used = pages.used && Math.max(1, Math.round((pages.used / total) * cells));
  const kept = pages.cached && Math.max(1, Math.round((pages.cached / total) * cells));
  const said = `${whole(pages.used)} in use, ${whole(pages.cached)} kept, ${whole(pages.free)} free`;
  return (
    <div class="map">
      <h3>
        <bdi>{name}</bdi>
      </h3>
      <div class="cells" role="img" aria-label={`${name}: ${said}`}>
        {Array.from({ length: cells }, (_, index) => (
          <i key={index} class={`cell ${index < used ? "used" : index < used + kept ? "cached" : "free"}`} />
        ))}
      </div>
      <p class="hint">
        {said} of {whole(total)}
      </p>
    </div>
  );
}

const HEADS: Head[] = ["Model", "State", ["Weights", "num"], ["KV cache", "num"], ["Other", "num"], ["As a bar", "memory-bar"], ["Steps", "num"], ["Preempted", "num"], ["Restarts", "num"]];

function Memory({ event, model }: { event: LiveEvent; model: string }): JSX.Element {
  const found = shownModels(event, model);
  const most = Math.max(...found.map(({ memory }) => memory.weights + memory.kv_cache + memory.other), 1);
  return (
    <Card title="Models" note={<span class="hint">{event.memory_bytes > 0 && `${bytes(event.memory_bytes)} for all models together`}</span>}>
      <Table label="Table of models" heads={HEADS}>
        {found.map((one) => (
          <tr key={one.name}>
            <th scope="row">
              <bdi>{one.name}</bdi>
            </th>
            <td>
              <span class={`badge ${one.state}`}>{one.state}</span>
            </td>
            <td class="num">{bytes(one.memory.weights)}</td>
            <td class="num">{bytes(one.memory.kv_cache)}</td>
            <td class="num">{bytes(one.memory.other)}</td>
            <td aria-hidden="true" class="memory-bar">
              <div class="stack">
                {(["weights", "kv_cache", "other"] as const).map((part) => (
                  <div key={part} class={`part ${part}`} style={{ width: `${(one.memory[part] / most) * 100}%` }} />
                ))}
              </div>
            </td>
            <td class="num">{whole(one.steps)}</td>
            <td class="num">{whole(one.preemptions)}</td>
            <td class="num">{whole(one.restarts)}</td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}
