import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Embeddings } from "./Embeddings";
import { Entities } from "./Entities";
import { Rerank } from "./Rerank";

const KINDS: { id: string; label: string; view: () => JSX.Element }[] = [
  { id: "embeddings", label: "Embeddings", view: () => <Embeddings /> },
  { id: "entities", label: "Entities", view: () => <Entities /> },
  { id: "rerank", label: "Rerank", view: () => <Rerank /> },
];

function chosen(): string {
  return location.hash.split("/")[1] ?? KINDS[0]!.id;
}

export function Playground(): JSX.Element {
  const [id, setId] = useState(chosen);
  useEffect(() => {
    const onChange = (): void => setId(chosen());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  const kind = KINDS.find((one) => one.id === id) ?? KINDS[0]!;
  return (
    <div class="pane">
      <div class="pane-head">
        <h1>Playground</h1>
        <nav class="switch" aria-label="What to try">
          {KINDS.map((one) => (
            <a key={one.id} href={`#playground/${one.id}`} aria-current={one.id === kind.id ? "page" : undefined}>
              {one.label}
            </a>
          ))}
        </nav>
      </div>
      <kind.view key={kind.id} />
    </div>
  );
}
