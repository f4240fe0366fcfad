// What the playgrounds share: a form that asks the server once, and shows what came or why nothing did.
import type { ComponentChildren, JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { Waterfall } from "../explain/Waterfall";
import type { ExplainNode } from "../chat/conversation";
import { models } from "../chat/state";
import { seconds } from "../lib/format";
import { getJson, messageOf } from "../lib/http";
import { Button, Field, Notice } from "../lib/ui";

export interface Explained {
  model?: string;
  explain?: ExplainNode;
}

export interface Trial<T> {
  result: T | null;
  tookS: number;
  error: string;
  isRunning: boolean;
  run: (path: string, body: Record<string, unknown>) => void;
}

export function useTrial<T extends Explained>(): Trial<T> {
  const [result, setResult] = useState<T | null>(null);
  const [error, setError] = useState("");
  const [tookS, setTook] = useState(0);
  const [isRunning, setRunning] = useState(false);
  const abort = useRef(new AbortController());
  const run = async (path: string, body: Record<string, unknown>): Promise<void> => {
    abort.current.abort();
    const own = (abort.current = new AbortController());
    setRunning(true);
    setError("");
    const start = performance.now();
    try {
      const found = await getJson<T>(path, { body: { ...body, explain: true }, signal: own.signal });
      setTook((performance.now() - start) / 1000);
      setResult(found);
    } catch (failure) {
      if (own.signal.aborted) return;
      setError(messageOf(failure));
      setResult(null);
    }
    setRunning(false);
  };
  return { result, tookS, error, isRunning, run: (path, body) => void run(path, body) };
}

export function ModelField({ value, onChange }: { value: string; onChange: (model: string) => void }): JSX.Element {
  return (
    <Field label="Model">
      {(id) => (
        <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
          <option value="">the first that can</option>
          {models.value.map((one) => (
            <option key={one.id}>{one.id}</option>
          ))}
        </select>
      )}
    </Field>
  );
}

interface FormProps<T> {
  trial: Trial<T>;
  label: string;
  onSubmit: () => void;
  children: ComponentChildren;
}

export function TrialForm<T>({ trial, label, onSubmit, children }: FormProps<T>): JSX.Element {
  return (
    <form
      class="card trial"
      onSubmit={(event) => {
        event.preventDefault();
        onSubmit();
      }}
    >
      {children}
      <div class="row">
        <Button label={trial.isRunning ? "Computing…" : label} kind="main" type="submit" disabled={trial.isRunning} />
      </div>
    </form>
  );
}

interface ResultProps<T> {
  trial: Trial<T>;
  title: string;
  children: (result: T) => ComponentChildren;
}

export function TrialResult<T extends Explained>({ trial, title, children }: ResultProps<T>): JSX.Element | null {
  const [isExplained, setExplained] = useState(false);
  const { result } = trial;
  if (trial.error) return <Notice>{trial.error}</Notice>;
  if (!result) return null;
  return (
    <section class="card trial" aria-label={title} aria-live="polite">
      <div class="card-head">
        <h2>{title}</h2>
        <span class="hint">
          {result.model && `${result.model} · `}
          {seconds(trial.tookS)}
        </span>
      </div>
      {children(result)}
      {result.explain && (
        <div class="row">
          <Button label="Explain" icon="live" kind="quiet" expanded={isExplained} onClick={() => setExplained(!isExplained)} />
        </div>
      )}
      {isExplained && result.explain && <Waterfall tree={result.explain} />}
    </section>
  );
}

export function lines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}
