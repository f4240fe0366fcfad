import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Field, Notice } from "../lib/ui";
import { type Explained, lines, ModelField, TrialForm, TrialResult, useTrial } from "./trial";

const MAX_TEXTS = 30; // the matrix stays readable
const EXAMPLE = "How do I list all files?\nls -la shows every file in a folder\nThe cat sleeps on the sofa\nA kitten is napping on the couch\nQuarterly revenue grew by 12 %";

interface Reply extends Explained {
  data: { embedding: number[] }[];
}

export function Embeddings(): JSX.Element {
  const [text, setText] = useState(EXAMPLE);
  const [model, setModel] = useState("");
  const [shown, setShown] = useState<string[]>([]);
  const trial = useTrial<Reply>();
  const texts = lines(text);
  const isTooMany = texts.length > MAX_TEXTS;
  const submit = (): void => {
    if (isTooMany || !texts.length) return;
    setShown(texts);
    trial.run("v1/embeddings", { input: texts, ...(model ? { model } : {}) });
  };
  return (
    <>
      <TrialForm trial={trial} label="Compare" onSubmit={submit}>
        <Field label="Texts, one a line">{(id) => <textarea id={id} rows={6} required value={text} onInput={(event) => setText(event.currentTarget.value)} />}</Field>
        {isTooMany && <Notice kind="info">{`${texts.length} texts: at most ${MAX_TEXTS} are compared here.`}</Notice>}
        <ModelField value={model} onChange={setModel} />
      </TrialForm>
      <TrialResult trial={trial} title="Cosine similarity">
        {(reply) => <Matrix texts={shown} vectors={reply.data.map((one) => one.embedding)} />}
      </TrialResult>
    </>
  );
}

function cosine(one: number[], other: number[]): number {
  let product = 0;
  let left = 0;
  let right = 0;
  for (let at = 0; at < one.length; at++) {
    product += one[at]! * other[at]!;
    left += one[at]! ** 2;
    right += other[at]! ** 2;
  }
  return product / (Math.sqrt(left * right) || 1);
}

function Matrix({ texts, vectors }: { texts: string[]; vectors: number[][] }): JSX.Element {
  const dimensions = vectors[0]?.length ?? 0;
  return (
    <>
      <div class="table-box" tabIndex={0} role="region" aria-label="Similarity matrix">
        <table class="matrix">
          <caption class="sr-only">Cosine similarity of each pair of texts</caption>
          <thead>
            <tr>
              <td />
              {texts.map((_, index) => (
                <th scope="col" key={index}>
                  {index + 1}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {vectors.map((vector, row) => (
              <tr key={row}>
                <th scope="row">
                  <b>{row + 1}</b> <bdi>{texts[row]}</bdi>
                </th>
                {vectors.map((other, column) => {
                  const value = cosine(vector, other);
                  const strength = Math.round(Math.max(0, Math.min(1, value)) * 55);
                  return (
                    <td key={column} class="num" style={{ background: `color-mix(in srgb, var(--line-1) ${strength}%, var(--surface))` }}>
                      {value.toFixed(2)}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="hint">{dimensions} numbers in each vector.</p>
    </>
  );
}
