import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { plural, rate, whole } from "../lib/format";
import { ApiError, getKey, messageOf, retried } from "../lib/http";
import { Card, Table, Tiles } from "../lib/tables";
import { Button, Notice } from "../lib/ui";
import { act, dollars, readStatus, readTasks, type Status, type Task, words } from "./loop";
import { TaskCard } from "./TaskCard";
import { when } from "./when";

const AGAIN_MS = 5000;
const NOT_ENABLED = 501;
const ALERTS = 5;

/** Tasks in the traffic, what could be learned of them, and what a person decides. */
export function Adapt(): JSX.Element {
  const [status, setStatus] = useState<Status | null>(null);
  const [tasks, setTasks] = useState<Task[]>([]);
  const [error, setError] = useState<unknown>(null);
  const [opened, setOpened] = useState(location.hash.split("/")[1] ?? "");
  const [turn, setTurn] = useState(0);
  const [isFinding, setFinding] = useState(false);
  const again = (): void => setTurn((before) => before + 1);

  useEffect(() => {
    const abort = new AbortController();
    const read = async (): Promise<void> => {
      if (document.visibilityState === "hidden") return; // nobody looks
      try {
        const [found, all] = await Promise.all([readStatus(abort.signal), readTasks(abort.signal)]);
        setStatus(found);
        setTasks(all);
        setError(null);
      } catch (failure) {
        if (!abort.signal.aborted) setError(failure);
      }
    };
    void read();
    const timer = setInterval(() => {
      if (!(error instanceof ApiError && error.status > 0)) void read(); // what was refused is refused again
    }, AGAIN_MS);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [getKey(), retried.value, turn, error instanceof ApiError ? error.status : 0]);

  const find = async (): Promise<void> => {
    setFinding(true);
    try {
      setTasks((await act<{ data: Task[] }>("tasks", {})).data);
    } catch (failure) {
      setError(failure);
    }
    setFinding(false);
  };
  const open = (id: string): void => {
    setOpened(id);
    history.replaceState(null, "", `#adapt${id && `/${id}`}`);
  };
  const chosen = tasks.find((one) => one.id === opened);
  return (
    <div class="pane">
      <div class="pane-head">
        <h1>Adapt</h1>
        <span class="grow" />
        {status && <Button label={isFinding ? "Finding groups…" : "Find groups"} disabled={isFinding} onClick={() => void find()} />}
        <Button label="Refresh" icon="again" onClick={again} />
      </div>
      {error !== null && (error instanceof ApiError && error.status === NOT_ENABLED ? <Off said={error.message} /> : <Notice>{messageOf(error)}</Notice>)}
      {status && (
        <>
          <Alerts status={status} tasks={tasks} />
          <Totals status={status} />
          <Tasks tasks={tasks} status={status} opened={opened} onOpen={open} />
          {chosen && <TaskCard key={chosen.id} task={chosen} training={status.trainings.find((one) => one.task === chosen.id)?.stage ?? ""} turn={status} onChange={again} />}
        </>
      )}
    </div>
  );
}

function Off({ said }: { said: string }): JSX.Element {
  return (
    <Notice kind="info">
      <p>The adaptive loop learns from your own traffic which tasks a small model could answer. It is off.</p>
      <p>{said}</p>
    </Notice>
  );
}

function Alerts({ status, tasks }: { status: Status; tasks: Task[] }): JSX.Element | null {
  if (!status.alerts.length) return null;
  return (
    <Card title="Alerts">
      <ul class="alerts">
        {status.alerts.slice(0, ALERTS).map((one) => (
          <li key={one.id}>
            <span class={`badge ${one.kind}`}>{words(one.kind)}</span> <bdi>{tasks.find((task) => task.id === one.task)?.name ?? one.task}</bdi> <span class="hint">{when(one.at_s)}</span>
            <p>{one.text}</p>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Totals({ status }: { status: Status }): JSX.Element {
  const saved = status.students.filter((one) => one.state === "promoted").reduce((sum, one) => sum + one.saves_usd_per_month, 0);
  const ready = status.students.filter((one) => one.state === "ready");
  const could = ready.reduce((sum, one) => sum + one.saves_usd_per_month, 0);
  const lost = Object.entries(status.dropped);
  const tiles: [string, string, string][] = [
    ["Collected", whole(status.examples), `of ${plural(status.tasks, "task")}, from ${status.keys.includes("*") ? "all keys" : plural(status.keys.length, "key")}`],
    ["Cost", dollars(status.usd), "of what is kept"],
    ["Ready", whole(ready.length), ready.length ? `would save ${dollars(could)} a month` : "no student waits for a decision"],
    ["In training", whole(status.trainings.length), status.trainings.map((one) => one.stage).join(", ") || "no student is made"],
    ["Saving", dollars(saved), "a month, by promoted students at present traffic"],
    ["Not kept", whole(lost.reduce((sum, [, count]) => sum + count, 0)), lost.map(([why, count]) => `${whole(count)} ${why}`).join(", ") || "nothing was left out"],
  ];
  return <Tiles tiles={tiles} />;
}

interface TasksProps {
  tasks: Task[];
  status: Status;
  opened: string;
  onOpen: (id: string) => void;
}

function Tasks({ tasks, status, opened, onOpen }: TasksProps): JSX.Element {
  if (!tasks.length) return <p class="hint">No request was collected yet.</p>;
  const prospect = (task: string): Status["students"][number] | undefined => status.students.find((one) => one.task === task);
  return (
    <Card title="Tasks" note={<span class="hint">those that cost most first</span>}>
      <Table label="Table of tasks" heads={["Task", ["Examples", "num"], ["A day", "num"], ["Cost", "num"], "Student", ["Saves a month", "num"]]}>
        {tasks.map((one) => {
          const found = prospect(one.id);
          const training = status.trainings.some((each) => each.task === one.id);
          return (
            <tr key={one.id}>
              <th scope="row">
                <button type="button" class="fold task-name" aria-expanded={opened === one.id} onClick={() => onOpen(opened === one.id ? "" : one.id)}>
                  <bdi>{one.name}</bdi>
                </button>
              </th>
              <td class="num">{whole(one.examples)}</td>
              <td class="num">{rate(one.per_day)}</td>
              <td class="num">{dollars(one.usd)}</td>
              <td>{found ? <span class={`badge ${found.state}`}>{words(found.state)}</span> : training ? "in training" : "–"}</td>
              <td class="num">{found ? dollars(found.saves_usd_per_month) : "–"}</td>
            </tr>
          );
        })}
      </Table>
    </Card>
  );
}
