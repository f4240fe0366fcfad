import type { JSX } from "preact";
import { percent, whole } from "../lib/format";
import type { Evidence } from "./loop";

/** How near the test is to a decision: the logarithm of the capital on its way to what is needed. */
export function EvidenceBar({ evidence, margin }: { evidence: Evidence; margin: number }): JSX.Element {
  const { better, same, worse, capital, needed } = evidence;
  const part = Math.min(1, Math.max(0, Math.log(Math.max(capital, 1)) / Math.log(needed)));
  const said = capital >= 1e4 ? "over 10,000" : capital.toPrecision(3);
  const text = `Capital ${said} of ${whole(needed)}`;
  return (
    <div class="evidence">
      <div class="row">
        <b>{text}</b>
        <span class="hint">
          better {whole(better)}, same {whole(same)}, worse {whole(worse)}
        </span>
      </div>
      <svg class="evidence-bar" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={`${text}: ${percent(part)} of the way`}>
        <rect class="way" width="100" height="4" />
        <rect class="done" width={part * 100} height="4" />
      </svg>
      <p class="hint">What bets against “it is worse by {percent(margin)} or more” have made of 1. One may look at any time; a student is proposed where it reaches {whole(needed)}.</p>
    </div>
  );
}
