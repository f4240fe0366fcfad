import type { JSX } from "preact";
import { Button, Field } from "../lib/ui";
import type { Options as Values } from "./conversation";
import { current, models, setOptions, version } from "./state";

interface Numeric {
  name: "temperature" | "topP" | "topK" | "maxTokens" | "seed";
  label: string;
  step: string;
  min?: string;
  max?: string;
}

const NUMBERS: Numeric[] = [
  { name: "temperature", label: "Temperature", step: "0.1", min: "0", max: "2" },
  { name: "topP", label: "Top p", step: "0.05", min: "0", max: "1" },
  { name: "topK", label: "Top k", step: "1", min: "0" },
  { name: "maxTokens", label: "Max tokens", step: "1", min: "1" },
  { name: "seed", label: "Seed", step: "1" },
];

export function Options({ onClose }: { onClose: () => void }): JSX.Element {
  void version.value;
  const { options } = current.value;
  // Boxes tell each key: a redraw, as answers cause many, shows what is known here.
  const set = (change: Partial<Values>): void => setOptions({ ...current.value.options, ...change });
  return (
    <aside class="side options" aria-label="Options of this chat">
      <div class="side-head">
        <h2>Options</h2>
        <Button label="Close options" icon="close" kind="quiet" hideText onClick={onClose} />
      </div>
      <Field label="Compare with" hint="A second model answers each message, too.">
        {(id, hint) => (
          <select id={id} aria-describedby={hint} value={options.compare} onChange={(event) => set({ compare: event.currentTarget.value })}>
            <option value="">no other model</option>
            {models.value.map((one) => (
              <option key={one.id}>{one.id}</option>
            ))}
          </select>
        )}
      </Field>
      <Field label="System prompt">
        {(id) => <textarea id={id} rows={4} value={options.system} onInput={(event) => set({ system: event.currentTarget.value })} />}
      </Field>
      <div class="pairs">
        {NUMBERS.map(({ name, label, ...bounds }) => (
          <Field label={label} key={name}>
            {(id) => (
              <input
                id={id}
                type="number"
                inputMode="decimal"
                placeholder="default"
                value={options[name]}
                {...bounds}
                onInput={(event) => set({ [name]: event.currentTarget.value })}
              />
            )}
          </Field>
        ))}
        <Field label="Reasoning">
          {(id) => (
            <select id={id} value={options.effort} onChange={(event) => set({ effort: event.currentTarget.value })}>
              <option value="">default</option>
              <option value="none">none</option>
              <option value="low">low</option>
              <option value="medium">medium</option>
              <option value="high">high</option>
            </select>
          )}
        </Field>
      </div>
      <Field label="Answer as">
        {(id) => (
          <select id={id} value={options.format} onChange={(event) => set({ format: event.currentTarget.value as Values["format"] })}>
            <option value="text">text</option>
            <option value="json">JSON</option>
            <option value="schema">JSON of a schema</option>
          </select>
        )}
      </Field>
      {options.format === "schema" && (
        <Field label="JSON schema">
          {(id) => (
            <textarea
              id={id}
              class="mono"
              rows={7}
              spellcheck={false}
              placeholder={'{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'}
              value={options.schema}
              onInput={(event) => set({ schema: event.currentTarget.value })}
            />
          )}
        </Field>
      )}
      <Field label="Tools" hint="A JSON list of functions. Their calls are shown; you give the results.">
        {(id, hint) => (
          <textarea
            id={id}
            aria-describedby={hint}
            class="mono"
            rows={5}
            spellcheck={false}
            placeholder={'[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'}
            value={options.tools}
            onInput={(event) => set({ tools: event.currentTarget.value })}
          />
        )}
      </Field>
      <label class="check">
        <input type="checkbox" checked={options.explain} onChange={(event) => set({ explain: event.currentTarget.checked })} />
        Explain where the time of each answer goes
      </label>
    </aside>
  );
}
