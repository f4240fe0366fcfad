import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { bytes, percent, plural, seconds, whole } from "../lib/format";
import { Facts } from "../lib/tables";
import { Button, Notice } from "../lib/ui";
import { EvidenceBar } from "./EvidenceBar";
import { LabelDialog } from "./LabelDialog";
import { dollars, type Judge, points, type Rung, type Student, words } from "./loop";
import { Part } from "./Part";

interface Props {
  task: string;
  student: Student;
  monthly: number;
  onChange: () => void;
}

/** A student: what it saves, what speaks for it, and what it was made of. */
export function StudentBox({ task, student, monthly, onChange }: Props): JSX.Element {
  const { card, evidence, answered, judge } = student;
  const total = evidence.better + evidence.same + evidence.worse;
  return (
    <div class="student">
      <div class="row">
        <h3>
          Student <span class="mono">{student.id}</span>
        </h3>
        <span class={`badge ${student.state}`}>{words(student.state)}</span>
        <span class="hint">
          {card.rung}, of {plural(card.lessons, "example")}, tried on {whole(card.held_out)} later ones
        </span>
      </div>
      <p>
        It answers <b>{percent(answered)}</b> of the requests, so that you pay {percent(1 - answered)} of today's {dollars(monthly)} a month and save <b>{dollars(student.saves_usd_per_month)}</b>.{" "}
        {total === 0 ? (
          "Its quality is not measured yet: no requests came since it was made."
        ) : (
          <>
            Quality differs by {points(evidence.difference)}: more than {points(evidence.lower)} and less than {points(evidence.upper)}, each with {percent(1 - card.alpha)} confidence, by {plural(total, "example")}.
          </>
        )}
      </p>
      {student.state === "promoted" && (
        <p>
          It gets {percent(student.share)} of the requests to <bdi>{student.route}</bdi> at first, doubled after every 20 checks; {percent(student.audit)} of its answers are checked.
        </p>
      )}
      {student.slices.length > 0 && <Notice>It is much worse in the groups {student.slices.join(", ")}.</Notice>}
      {card.exposed.length > 0 && <Notice>It gives away what it has learned from: {card.exposed.slice(0, 3).join("; ")}.</Notice>}
      {judge && <Judged task={task} judge={judge} isOpen={["shadow", "ready", "promoted"].includes(student.state)} onChange={onChange} />}
      <EvidenceBar evidence={evidence} margin={card.margin} />
      <Report report={card.report} chosen={card.rung} />
      <p class="hint mono">
        data {card.data_sha256.slice(0, 16)} · weights {card.weights}
        {Object.entries(card.lineage).map(([kind, of]) => ` · ${kind} ${of}`)}
      </p>
    </div>
  );
}

/** How far a judge is, and how far people trust it. */
function Judged({ task, judge, isOpen, onChange }: { task: string; judge: Judge; isOpen: boolean; onChange: () => void }): JSX.Element {
  const [isAsked, setAsked] = useState(false);
  if (!judge.model) return <p class="hint">A judge will compare its texts with today's: press Shadow.</p>;
  const { missing } = judge;
  const facts: [string, string][] = [
    ["Judge", judge.model],
    ["Compared", `${plural(judge.compared, "pair")} for ${dollars(judge.usd)}`],
    ["It says of the student", Object.entries(judge.verdicts).map(([verdict, count]) => `${whole(count)} ${verdict}`).join(", ")],
    ["Labels of people", `${whole(judge.labels)}, of these ${whole(judge.skipped)} skipped`],
    ["Both agree", judge.labels ? `in ${percent(judge.agreement)}, at least ${percent(judge.agreement_lower)}` : ""],
  ];
  return (
    <div class="evidence" role="region" aria-label="Judge">
      <Facts facts={facts} />
      {missing === null && <Notice>By the labels of people the student is too bad.</Notice>}
      {isOpen && missing !== null && (
        <div class="row">
          <Button label="Label answers…" disabled={!judge.compared} onClick={() => setAsked(true)} />
          <span class="hint">{missing ? `About ${plural(missing, "more label")} ${missing === 1 ? "is" : "are"} needed. No student is proposed before people have checked the judge.` : "There are enough labels for what was compared so far."}</span>
        </div>
      )}
      <LabelDialog
        task={task}
        open={isAsked}
        onClose={() => {
          setAsked(false);
          onChange();
        }}
      />
    </div>
  );
}

/** Every kind of student that was made, or why it was not. */
function Report({ report, chosen }: { report: Rung[]; chosen: string }): JSX.Element | null {
  if (!report.length) return null;
  return (
    <Part title="Kinds of students that were tried" heads={["Kind", ["Right", "num"], ["May answer", "num"], ["Processor", "num"], ["Size", "num"], "Why not"]}>
      {report.map(({ rung, tried, score, share, seconds: took, bytes: size, why }) => (
        <tr key={rung}>
          <th scope="row">{rung === chosen ? <b>{rung}, chosen</b> : rung}</th>
          {tried ? (
            <>
              <td class="num">{percent(score)}</td>
              <td class="num">{percent(share)}</td>
              <td class="num">{seconds(took)}</td>
              <td class="num">{bytes(size)}</td>
            </>
          ) : (
            [0, 1, 2, 3].map((column) => (
              <td key={column} class="num">
                –
              </td>
            ))
          )}
          <td>{tried ? why || "–" : `not tried: ${why}`}</td>
        </tr>
      ))}
    </Part>
  );
}
