import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Field } from "../lib/ui";
import { type Explained, lines, ModelField, TrialForm, TrialResult, useTrial } from "./trial";

const QUERY = "How do I see which process uses a port?";
const DOCUMENTS = "lsof -i :8080 lists the processes with a socket on the port\ntar xzf extracts an archive\nss -ltnp shows listening sockets and their processes\nThe port of Rotterdam is the largest in Europe";

interface Reply extends Explained {
  results: { index: number; relevance_score: number }[];
}

export function Rerank(): JSX.Element {
  const [query, setQuery] = useState(QUERY);
  const [text, setText] = useState(DOCUMENTS);
  const [model, setModel] = useState("");
  const [shown, setShown] = useState<string[]>([]);
  const trial = useTrial<Reply>();
  const submit = (): void => {
    const documents = lines(text);
    setShown(documents);
    trial.run("v1/rerank", { query, documents, ...(model ? { model } : {}) });
  };
  return (
    <>
      <TrialForm trial={trial} label="Rank" onSubmit={submit}>
        <Field label="Query">{(id) => <input id={id} required value={query} onInput={(event) => setQuery(event.currentTarget.value)} />}</Field>
        <Field label="Documents, one a line">{(id) => <textarea id={id} rows={6} required value={text} onInput={(event) => setText(event.currentTarget.value)} />}</Field>
        <ModelField value={model} onChange={setModel} />
      </TrialForm>
      <TrialResult trial={trial} title="Ranking">
        {(reply) => <Ranking documents={shown} results={reply.results} />}
      </TrialResult>
    </>
  );
}

function Ranking({ documents, results }: { documents: string[]; results: Reply["results"] }): JSX.Element {
  const scores = results.map((one) => one.relevance_score);
  const [low, high] = [Math.min(0, ...scores), Math.max(...scores, 1e-9)];
  return (
    <ol class="ranking">
      {results.map((one) => (
        <li key={one.index}>
          <span class="score num">{one.relevance_score.toFixed(3)}</span>
          <div>
            <p>
              <bdi>{documents[one.index]}</bdi>
            </p>
            <div class="bar-track" aria-hidden="true">
              <div class="bar" style={{ left: 0, width: `${((one.relevance_score - low) / (high - low || 1)) * 100}%` }} />
            </div>
          </div>
          <span class="hint">was {one.index + 1}</span>
        </li>
      ))}
    </ol>
  );
}
