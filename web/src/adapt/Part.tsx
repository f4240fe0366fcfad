import type { ComponentChildren, JSX } from "preact";
import { type Head, Table } from "../lib/tables";

interface PartProps {
  title: string;
  heads: Head[];
  children: ComponentChildren;
}

/** A table with its heading. */
export function Part({ title, heads, children }: PartProps): JSX.Element {
  return (
    <div>
      <h3>{title}</h3>
      <Table label={title} heads={heads}>
        {children}
      </Table>
    </div>
  );
}
