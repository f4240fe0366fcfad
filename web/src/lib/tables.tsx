// Figures as panes show them: tables, tiles, and lists of facts.
import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";

/** The name of a column, and what it has if it is not text: numbers, or a bar, whose name is only heard. */
export type Head = string | [name: string, kind: "num" | "memory-bar"];

interface TableProps {
  label: string;
  heads: Head[];
  kind?: string;
  children: ComponentChildren;
}

/** Rows in a box that scrolls where the page is narrow. */
export function Table({ label, heads, kind, children }: TableProps): JSX.Element {
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label={label}>
      <table class={kind}>
        <thead>
          <tr>
            {heads.map((head) => {
              const [name, has] = typeof head === "string" ? [head] : head;
              return (
                <th key={name} scope="col" class={has}>
                  {has === "memory-bar" ? <span class="sr-only">{name}</span> : name}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

interface CardProps {
  title: string;
  note?: ComponentChildren;
  children: ComponentChildren;
}

export function Card({ title, note, children }: CardProps): JSX.Element {
  const id = useId();
  return (
    <section class="card" aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>{title}</h2>
        {note}
      </div>
      {children}
    </section>
  );
}

/** A few figures, large, each with a note. */
export function Tiles({ tiles }: { tiles: [label: string, figure: string, note: string][] }): JSX.Element {
  return (
    <dl class="tiles" aria-label="Figures">
      {tiles.map(([label, figure, note]) => (
        <div class="card tile" key={label}>
          <dt>{label}</dt>
          <dd>
            <span class="figure">{figure}</span>
            <span class="hint">{note}</span>
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** Names and values; what has no value is left out. */
export function Facts({ facts, kind }: { facts: [name: string, value: string | null][]; kind?: "mono" }): JSX.Element {
  return (
    <dl class="pairs-list">
      {facts.map(
        ([name, value]) =>
          value && (
            <div key={name}>
              <dt>{name}</dt>
              <dd class={kind}>{value}</dd>
            </div>
          ),
      )}
    </dl>
  );
}
