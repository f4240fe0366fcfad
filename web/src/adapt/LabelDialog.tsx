import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { messageOf } from "../lib/http";
import { Button, Dialog, Notice } from "../lib/ui";
import { giveLabel, type Pair, readPairs } from "./loop";

const CHOICES = [
  ["1", "Answer 1 is better"],
  ["2", "Answer 2 is better"],
  ["tie", "Equally good"],
  ["skip", "Skip"],
] as const;

/** A person compares answers. Each label is kept at once. */
export function LabelDialog({ task, open, onClose }: { task: string; open: boolean; onClose: () => void }): JSX.Element {
  const [pairs, setPairs] = useState<Pair[] | null>(null);
  const [isSent, setSent] = useState(false);
  const [error, setError] = useState("");
  useEffect(() => {
    if (!open) return;
    const abort = new AbortController();
    setPairs(null);
    setError("");
    readPairs(task, abort.signal).then(setPairs, (failure: unknown) => {
      if (!abort.signal.aborted) setError(messageOf(failure));
    });
    return () => abort.abort();
  }, [task, open]);

  const label = async (pair: string, preferred: string): Promise<void> => {
    setSent(true);
    setError("");
    try {
      await giveLabel(task, pair, preferred);
      setPairs((before) => before!.filter((one) => one.pair !== pair));
    } catch (failure) {
      setError(messageOf(failure));
    }
    setSent(false);
  };
  const pair = pairs?.[0];
  return (
    <Dialog title="Which answer is better?" open={open} onClose={onClose}>
      {error && <Notice>{error}</Notice>}
      {pair ? (
        <>
          {(["prompt", "first", "second"] as const).map((part, place) => (
            <div key={part}>
              <h3>{place ? `Answer ${place}` : "Question"}</h3>
              <pre class="code-box" tabIndex={0}>
                {pair[part]}
              </pre>
            </div>
          ))}
          <div class="row">
            {CHOICES.map(([preferred, name]) => (
              <Button key={preferred} label={name} disabled={isSent} onClick={() => void label(pair.pair, preferred)} />
            ))}
          </div>
          <p class="hint">Skip only what cannot be told: it speaks against the student.</p>
        </>
      ) : (
        pairs && <p>No answers are left to compare. New ones come with new requests.</p>
      )}
    </Dialog>
  );
}
