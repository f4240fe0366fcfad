import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Table } from "../lib/tables";
import { Field } from "../lib/ui";
import { type Explained, ModelField, TrialForm, TrialResult, useTrial } from "./trial";

const EXAMPLE = "Ada Lovelace was born in London. She worked with Charles Babbage of Cambridge University.";
const COLORS = 6;

interface Entity {
  text: string;
  label: string;
  start: number;
  end: number;
  score: number;
}

interface Reply extends Explained {
  data: { entities: Entity[] }[];
}

export function Entities(): JSX.Element {
  const [text, setText] = useState(EXAMPLE);
  const [labels, setLabels] = useState("person, place, organization, date");
  const [threshold, setThreshold] = useState("0.5");
  const [model, setModel] = useState("");
  const [shown, setShown] = useState("");
  const trial = useTrial<Reply>();
  const submit = (): void => {
    const given = labels
      .split(",")
      .map((label) => label.trim())
      .filter(Boolean);
    setShown(text);
    trial.run("v1/entities", {
      input: text,
      threshold: Number(threshold),
      ...(given.length ? { labels: given } : {}),
      ...(model ? { model } : {}),
    });
  };
  return (
    <>
      <TrialForm trial={trial} label="Find entities" onSubmit={submit}>
        <Field label="Text">{(id) => <textarea id={id} rows={3} required value={text} onInput={(event) => setText(event.currentTarget.value)} />}</Field>
        <div class="fields">
          <Field label="Labels" hint="Separated by commas, in your own words.">
            {(id, hint) => <input id={id} aria-describedby={hint} value={labels} onInput={(event) => setLabels(event.currentTarget.value)} />}
          </Field>
          <Field label="Threshold">
            {(id) => <input id={id} type="number" min="0.01" max="0.99" step="0.01" value={threshold} onInput={(event) => setThreshold(event.currentTarget.value)} />}
          </Field>
          <ModelField value={model} onChange={setModel} />
        </div>
      </TrialForm>
      <TrialResult trial={trial} title="Entities">
        {(reply) => <Marked text={shown} entities={reply.data[0]?.entities ?? []} />}
      </TrialResult>
    </>
  );
}

/** The text with its entities marked. Places are counted in code points, as the server does; of two that overlap the
 * first is marked, and the table has both. */
function Marked({ text, entities }: { text: string; entities: Entity[] }): JSX.Element {
  const points = Array.from(text);
  const names = [...new Set(entities.map((one) => one.label))];
  const colorOf = (label: string): number => names.indexOf(label) % COLORS;
  const parts: (string | JSX.Element)[] = [];
  let at = 0;
  for (const one of [...entities].sort((first, second) => first.start - second.start || second.end - first.end)) {
    if (one.start < at) continue;
    parts.push(points.slice(at, one.start).join(""));
    parts.push(
      <mark key={one.start} class={`entity entity-${colorOf(one.label)}`}>
        {points.slice(one.start, one.end).join("")}
        <span class="label"> {one.label}</span>
      </mark>,
    );
    at = one.end;
  }
  parts.push(points.slice(at).join(""));
  if (!entities.length) return <p>Nothing was found above the threshold.</p>;
  return (
    <>
      <p class="marked">{parts}</p>
      <Table label="Entities found" heads={["Entity", "Label", ["Score", "num"], ["Characters", "num"]]}>
        {entities.map((one, index) => (
          <tr key={index}>
            <th scope="row">
              <bdi>{one.text}</bdi>
            </th>
            <td>
              <span class={`entity entity-${colorOf(one.label)} label-only`}>{one.label}</span>
            </td>
            <td class="num">{one.score.toFixed(3)}</td>
            <td class="num">
              {one.start}–{one.end}
            </td>
          </tr>
        ))}
      </Table>
    </>
  );
}
