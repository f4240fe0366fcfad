import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { percent } from "../lib/format";
import { Button, Dialog, Field, Notice } from "../lib/ui";
import { dollars, points, type Student, type Task } from "./loop";

interface Terms {
  share: number;
  audit: number;
  accept_slices: boolean;
}

interface Props {
  open: boolean;
  student: Student;
  task: Task;
  monthly: number;
  onClose: () => void;
  onPromote: (terms: Terms) => void;
}

/** A person's decision, with what it means. */
export function PromoteDialog({ open, student, task, monthly, onClose, onPromote }: Props): JSX.Element {
  const [share, setShare] = useState(10);
  const [audit, setAudit] = useState(2);
  const [accepts, setAccepts] = useState(false);
  const { card, evidence, slices } = student;
  const part = (value: number, set: (value: number) => void) => (id: string, hint: string | undefined) => (
    <input id={id} aria-describedby={hint} type="number" required min={0.1} max={100} step={0.1} value={value} onInput={(event) => set(event.currentTarget.valueAsNumber)} />
  );
  return (
    <Dialog title="Promote this student" open={open} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          onPromote({ share: share / 100, audit: audit / 100, accept_slices: accepts });
        }}
      >
        <p>
          Student <span class="mono">{student.id}</span> will answer requests of the task <bdi>{task.name}</bdi>. It answers {percent(student.answered)} of them and saves {dollars(student.saves_usd_per_month)} of {dollars(monthly)} a month;
          quality is more than {points(evidence.lower)} from today's, with {percent(1 - card.alpha)} confidence. What it is not sure of the large model answers.
        </p>
        <div class="pairs">
          <Field label="Requests at first (%)" hint="Doubled after every 20 checks.">
            {part(share, setShare)}
          </Field>
          <Field label="Answers checked (%)" hint="Where they are wrong too often it is rolled back by itself.">
            {part(audit, setAudit)}
          </Field>
        </div>
        {slices.length > 0 && (
          <>
            <Notice>It is much worse in the groups {slices.join(", ")}.</Notice>
            <label class="check">
              <input type="checkbox" checked={accepts} onChange={(event) => setAccepts(event.currentTarget.checked)} />
              This is all right
            </label>
          </>
        )}
        <div class="row">
          <Button label="Promote" kind="main" type="submit" disabled={slices.length > 0 && !accepts} />
          <Button label="Cancel" onClick={onClose} />
        </div>
      </form>
    </Dialog>
  );
}
