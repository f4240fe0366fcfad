// The adaptive loop of the server, as /v1/adapt/* tells it.
import { getJson } from "../lib/http";

export interface Group {
  number: number;
  size: number;
  name: string;
}

export interface Task {
  id: string;
  name: string;
  key_group: string;
  endpoint: string;
  instructions: string;
  examples: number;
  usd: number;
  per_day: number;
  groups: Group[];
}

export interface Prospect {
  task: string;
  student: string;
  state: string;
  saves_usd_per_month: number;
}

export interface Alert {
  id: string;
  at_s: number;
  kind: string;
  task: string;
  text: string;
}

export interface Status {
  enabled: boolean;
  keys: string[];
  tasks: number;
  examples: number;
  usd: number;
  dropped: Record<string, number>;
  students: Prospect[];
  alerts: Alert[];
  trainings: { task: string; student: string; stage: string; updated_s: number }[];
}

export interface Evidence {
  better: number;
  same: number;
  worse: number;
  capital: number;
  needed: number;
  difference: number;
  lower: number;
  upper: number;
}

/** How a kind of student did on later examples; `why` it was not tried, or nothing is certified. */
export interface Rung {
  rung: string;
  tried: number;
  score: number;
  share: number;
  seconds: number;
  bytes: number;
  why: string;
}

export interface Card {
  rung: string;
  lessons: number;
  held_out: number;
  margin: number;
  alpha: number;
  data_sha256: string;
  weights: string;
  exposed: string[];
  lineage: Record<string, string>;
  report: Rung[];
}

/** What a judge has compared, and how far people's labels trust it; `missing` null: people say that the student is too bad. */
export interface Judge {
  model: string;
  compared: number;
  verdicts: Record<string, number>;
  usd: number;
  labels: number;
  skipped: number;
  agreement: number;
  agreement_lower: number;
  missing: number | null;
}

/** Two answers of which nobody sees whose they are. */
export interface Pair {
  pair: string;
  prompt: string;
  first: string;
  second: string;
}

export interface Student {
  id: string;
  state: string;
  created_s: number;
  card: Card;
  evidence: Evidence;
  judge: Judge | null;
  answered: number;
  saves_usd_per_month: number;
  slices: number[];
  share: number;
  audit: number;
  route: string;
}

export interface Decision {
  at_s: number;
  student: string;
  what: string;
  who: string;
  detail: string;
}

export interface Failure {
  kind: string;
  count: number;
  replies: string[];
}

export interface History {
  usd_per_month: number;
  failures: Failure[];
  students: Student[];
  decisions: Decision[];
}

export interface Diagnosis {
  median_s: number;
  slow_s: number;
  distinct_answers: number;
  common_answer: number;
  rungs: { rung: string; tried: number; right: number; share: number; problem: string }[];
  missing: string;
}

export const readStatus = (signal: AbortSignal): Promise<Status> => getJson("v1/adapt/status", { signal });

export async function readTasks(signal: AbortSignal): Promise<Task[]> {
  return (await getJson<{ data: Task[] }>("v1/adapt/tasks", { signal })).data;
}

export const readHistory = (task: string, signal: AbortSignal): Promise<History> => getJson(`v1/adapt/history?task=${encodeURIComponent(task)}`, { signal });

/** Do it, by a person: the server writes down who has decided. */
export const act = <T>(action: string, body: unknown): Promise<T> => getJson<T>(`v1/adapt/${action}`, { body });

const labelsOf = (task: string): string => `v1/adapt/tasks/${encodeURIComponent(task)}/labels`;

export async function readPairs(task: string, signal: AbortSignal): Promise<Pair[]> {
  return (await getJson<{ data: Pair[] }>(labelsOf(task), { signal })).data;
}

export const giveLabel = (task: string, pair: string, preferred: string): Promise<unknown> => getJson(labelsOf(task), { body: { labels: [{ pair, preferred }] } });

/** Dollars, with cents or with two digits where there are less. */
export function dollars(value: number): string {
  if (value > 0 && value < 1e-4) return "less than $0.0001";
  if (value !== 0 && Math.abs(value) < 0.01) return `$${value.toPrecision(2)}`;
  return new Intl.NumberFormat("en-US", { style: "currency", currency: "USD" }).format(value);
}

/** A difference of quality in points. */
export function points(value: number): string {
  return `${value < 0 ? "−" : "+"}${Math.abs(value * 100).toFixed(1)} points`;
}

/** A student's state, or a decision, in words. */
export function words(state: string): string {
  return state.replaceAll("_", " ");
}
