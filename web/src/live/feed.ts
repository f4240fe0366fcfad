// The server's figures, once a second from GET v1/live. The server sends totals; what a second or a minute has
// brought are differences of them, made here.
import { signal } from "@preact/signals";
import { call, events, messageOf, ApiError } from "../lib/http";

export interface Pages {
  used: number;
  cached: number;
  free: number;
}

export interface LiveModel {
  name: string;
  state: string;
  replicas: number | null; // null: not served by replicas
  running: number;
  waiting: number;
  max_running: number;
  steps: number;
  prompt_tokens: number;
  generation_tokens: number;
  cache_queries: number;
  cache_hits: number;
  drafted: number;
  accepted: number;
  preemptions: number;
  restarts: number;
  pages: Pages;
  memory: { weights: number; kv_cache: number; other: number };
  step_bytes: number;
  step_operations: number;
  first_token: number[];
  per_token: number[];
  between_tokens: number[];
}

export interface LiveEvent {
  started_s: number;
  now_s: number;
  bounds_s: number[];
  memory_bytes: number;
  replies: Record<string, number>;
  models: LiveModel[];
  machine: { cpu: string; read_bytes_per_s: number; operations_per_s: number; cache_bytes: number } | null;
}

export const KEPT = 300; // seconds that charts show
const WINDOW = 60; // seconds that percentiles and shares are of
const BACKOFF_MS = [500, 1000, 2000, 5000];

export const latest = signal<LiveEvent | null>(null);
export const state = signal<"connecting" | "live" | "lost">("connecting");
/** The name of the one model that is shown; empty: all. */
export const shown = signal("");
export const failure = signal<string | null>(null);
let kept: LiveEvent[] = [];

/** The events of the last minutes, oldest first. */
export function history(): LiveEvent[] {
  return kept;
}

/** Follow the server until `signal` ends it; after a break it connects again. */
export async function follow(signal: AbortSignal): Promise<void> {
  let tries = 0;
  while (!signal.aborted) {
    try {
      const reply = await call("v1/live", { signal });
      for await (const data of events(reply)) {
        take(JSON.parse(data) as LiveEvent);
        tries = 0;
      }
    } catch (error) {
      if (signal.aborted) return;
      const isRefused = error instanceof ApiError && ((error.status >= 400 && error.status < 500) || error.status === 501);
      if (isRefused) {
        failure.value = messageOf(error);
        state.value = "lost";
        return;
      }
    }
    if (signal.aborted) return;
    state.value = "lost";
    await new Promise((resolve) => setTimeout(resolve, BACKOFF_MS[Math.min(tries++, BACKOFF_MS.length - 1)]));
  }
}

function take(event: LiveEvent): void {
  const last = kept.at(-1);
  if (last && last.started_s !== event.started_s) kept = []; // another process: its totals begin anew
  kept.push(event);
  if (kept.length > KEPT + 1) kept = kept.slice(-KEPT - 1);
  failure.value = null;
  state.value = "live";
  latest.value = event;
}

// --- What the totals say ------------------------------------------------------------------------------------

function ofModel(event: LiveEvent, name: string): LiveModel[] {
  return name ? event.models.filter((one) => one.name === name) : event.models;
}

export function sum(event: LiveEvent, name: string, what: (model: LiveModel) => number): number {
  return ofModel(event, name).reduce((total, model) => total + what(model), 0);
}

/** Per second, for each event but the first. */
export function rates(name: string, what: (model: LiveModel) => number): number[] {
  const found: number[] = [];
  for (let at = 1; at < kept.length; at++) {
    const before = kept[at - 1]!;
    const after = kept[at]!;
    const passed = Math.max(after.now_s - before.now_s, 0.1);
    found.push(Math.max(0, sum(after, name, what) - sum(before, name, what)) / passed);
  }
  return found;
}

/** The event that a window which ends with event `at` begins with. */
function startOf(at: number): LiveEvent {
  return kept[Math.max(0, at - WINDOW)]!;
}

function counts(event: LiveEvent, name: string, what: (model: LiveModel) => number[]): number[] {
  const all = ofModel(event, name).map(what);
  return event.bounds_s.concat(0).map((_, index) => all.reduce((total, one) => total + (one[index] ?? 0), 0));
}

/** A percentile of the last minute before event `at`, by interpolation in its bucket; null without values. */
export function percentile(name: string, what: (model: LiveModel) => number[], share: number, at = kept.length - 1): number | null {
  const event = kept[at];
  if (!event) return null;
  const before = counts(startOf(at), name, what);
  const fresh = counts(event, name, what).map((count, index) => Math.max(0, count - (before[index] ?? 0)));
  const total = fresh.reduce((one, other) => one + other, 0);
  if (!total) return null;
  let left = total * share;
  for (const [index, count] of fresh.entries()) {
    if (left <= count && count > 0) {
      const low = index === 0 ? 0 : event.bounds_s[index - 1]!;
      const high = event.bounds_s[index] ?? low * 2;
      return low + ((high - low) * left) / count;
    }
    left -= count;
  }
  return null;
}

/** What part of `of` `what` was in the last minute; null where there was none of it. */
export function share(name: string, what: (model: LiveModel) => number, of: (model: LiveModel) => number): number | null {
  const event = kept.at(-1);
  if (!event) return null;
  const before = startOf(kept.length - 1);
  const whole = sum(event, name, of) - sum(before, name, of);
  return whole > 0 ? (sum(event, name, what) - sum(before, name, what)) / whole : null;
}

/** The mean rate of the last seconds. */
export function recent(values: number[], over = 3): number {
  const last = values.slice(-over);
  return last.length ? last.reduce((one, other) => one + other, 0) / last.length : 0;
}
