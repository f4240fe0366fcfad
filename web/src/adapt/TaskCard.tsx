import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { percent, plural, seconds, whole } from "../lib/format";
import { messageOf } from "../lib/http";
import { Facts } from "../lib/tables";
import { Button, Notice } from "../lib/ui";
import { act, type Decision, type Diagnosis, dollars, type Failure, type History, readHistory, type Student, type Task, words } from "./loop";
import { Part } from "./Part";
import { PromoteDialog } from "./PromoteDialog";
import { StudentBox } from "./StudentBox";
import { when } from "./when";

const LONGEST = 600; // characters of a fact

interface Props {
  task: Task;
  training: string;
  turn: unknown; // changes when the task should be read again
  onChange: () => void;
}

/** One task: what goes wrong, its students with their evidence, and what was decided. */
export function TaskCard({ task, training, turn, onChange }: Props): JSX.Element {
  const [found, setFound] = useState<History | null>(null);
  const [diagnosis, setDiagnosis] = useState<Diagnosis | null>(null);
  const [running, setRunning] = useState("");
  const [error, setError] = useState("");
  const [isAsked, setAsked] = useState(false);
  useEffect(() => {
    const abort = new AbortController();
    readHistory(task.id, abort.signal).then(setFound, (failure: unknown) => {
      if (!abort.signal.aborted) setError(messageOf(failure));
    });
    return () => abort.abort();
  }, [task.id, turn]);

  const run = async <T,>(action: string, more: object = {}): Promise<T | null> => {
    setRunning(action);
    setError("");
    try {
      return await act<T>(action, { task: task.id, ...more });
    } catch (failure) {
      setError(messageOf(failure));
      return null;
    } finally {
      setRunning("");
      onChange();
    }
  };
  const diagnose = async (): Promise<void> => setDiagnosis((await run<Diagnosis>("diagnose")) ?? diagnosis);
  const has = (...states: string[]): Student | undefined => found?.students.find((one) => states.includes(one.state));
  const ready = has("ready");
  const isBusy = running !== "";
  return (
    <section class="card task" aria-labelledby="task-title">
      <div class="card-head">
        <h2 id="task-title">
          <bdi>{task.name}</bdi>
        </h2>
        <span class="hint mono">
          {task.id} · {task.endpoint}
        </span>
      </div>
      {error && <Notice>{error}</Notice>}
      <div class="row">
        <Button label={running === "diagnose" ? "Diagnosing…" : "Diagnose"} disabled={isBusy} onClick={() => void diagnose()} />
        <Button label={running === "train" ? "Training…" : "Train"} disabled={isBusy} onClick={() => void run("train")} />
        <Button label={running === "shadow" ? "Judging…" : "Shadow"} disabled={isBusy || !has("trained", "shadow")} onClick={() => void run("shadow")} />
        <span class="grow" />
        <Button label="Promote…" kind="main" disabled={isBusy || !ready} onClick={() => setAsked(true)} />
        <Button label="Roll back" kind="danger" disabled={isBusy || !has("promoted")} onClick={() => void run("rollback")} />
      </div>
      {training && <p class="hint">Training: {training}. It waits while requests of clients are under way.</p>}
      {found && (
        <>
          <About task={task} found={found} diagnosis={diagnosis} />
          <Failures failures={found.failures} />
          {diagnosis && <Ladder diagnosis={diagnosis} />}
          <Students task={task.id} students={found.students} monthly={found.usd_per_month} onChange={onChange} />
          <Decisions decisions={found.decisions} />
        </>
      )}
      {ready && found && (
        <PromoteDialog
          open={isAsked}
          student={ready}
          task={task}
          monthly={found.usd_per_month}
          onClose={() => setAsked(false)}
          onPromote={(terms) => {
            setAsked(false);
            void run("promote", terms);
          }}
        />
      )}
    </section>
  );
}

function About({ task, found, diagnosis }: { task: Task; found: History; diagnosis: Diagnosis | null }): JSX.Element {
  const facts: [string, string][] = [
    ["Key or team", task.key_group],
    ["Instructions", task.instructions.slice(0, LONGEST)],
    ["Examples", `${whole(task.examples)}, ${dollars(task.usd)}`],
    ["At this rate", `${dollars(found.usd_per_month)} a month`],
    ["Groups", task.groups.map((one) => `${one.name} (${whole(one.size)})`).join(", ").slice(0, LONGEST)],
  ];
  if (diagnosis) {
    facts.push(["Latency", `median ${seconds(diagnosis.median_s)}, p95 ${seconds(diagnosis.slow_s)}`]);
    facts.push(["Answers", `${plural(diagnosis.distinct_answers, "different one", "different ones")}, the commonest ${percent(diagnosis.common_answer)}`]);
  }
  return <Facts facts={facts} />;
}

function Failures({ failures }: { failures: Failure[] }): JSX.Element {
  if (!failures.length) return <p class="hint">Nothing went wrong, as far as is known.</p>;
  return (
    <Part title="What went wrong" heads={["Kind", ["How often", "num"], "In replies such as"]}>
      {failures.map((one) => (
        <tr key={one.kind}>
          <th scope="row">{one.kind}</th>
          <td class="num">{whole(one.count)}</td>
          <td class="mono">{one.replies.join(", ")}</td>
        </tr>
      ))}
    </Part>
  );
}

function Ladder({ diagnosis }: { diagnosis: Diagnosis }): JSX.Element {
  if (!diagnosis.rungs.length) return <Notice kind="info">{diagnosis.missing}</Notice>;
  return (
    <>
      <Part title="What a student could answer" heads={["Kind", ["Tried on", "num"], ["Right", "num"], ["May answer", "num"], "What is missing"]}>
        {diagnosis.rungs.map((one) => (
          <tr key={one.rung}>
            <th scope="row">{one.rung}</th>
            <td class="num">{one.tried ? whole(one.tried) : "–"}</td>
            <td class="num">{one.tried ? percent(one.right) : "–"}</td>
            <td class="num">{one.tried ? percent(one.share) : "–"}</td>
            <td>{one.problem || "–"}</td>
          </tr>
        ))}
      </Part>
      {diagnosis.missing && <Notice kind="info">{diagnosis.missing}</Notice>}
    </>
  );
}

function Students({ task, students, monthly, onChange }: { task: string; students: Student[]; monthly: number; onChange: () => void }): JSX.Element {
  if (!students.length) return <p class="hint">There is no student yet: train one.</p>;
  const [newest, ...earlier] = students;
  const promoted = earlier.find((one) => one.state === "promoted");
  return (
    <>
      {[newest!, ...(promoted ? [promoted] : [])].map((one) => (
        <StudentBox key={one.id} task={task} student={one} monthly={monthly} onChange={onChange} />
      ))}
    </>
  );
}

function Decisions({ decisions }: { decisions: Decision[] }): JSX.Element | null {
  if (!decisions.length) return null;
  return (
    <Part title="Decisions" heads={["When", "Student", "What", "Who", "Details"]}>
      {decisions.map((one) => (
        <tr key={`${one.at_s} ${one.student} ${one.what}`}>
          <th scope="row" class="when">
            {when(one.at_s)}
          </th>
          <td class="mono">{one.student}</td>
          <td>
            <span class={`badge ${one.what}`}>{words(one.what)}</span>
          </td>
          <td>
            <bdi>{one.who}</bdi>
          </td>
          <td>{one.detail || "–"}</td>
        </tr>
      ))}
    </Part>
  );
}
