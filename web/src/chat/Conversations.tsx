import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { day, plural } from "../lib/format";
import { messageOf } from "../lib/http";
import { storeFailure } from "../lib/store";
import { Button, Dialog, download, Notice } from "../lib/ui";
import { current, drop, exportAll, importAll, listed, openConversation, startNew, version } from "./state";

const SEARCH_FROM = 8;

export function Conversations({ onChosen }: { onChosen: () => void }): JSX.Element {
  void version.value;
  const [query, setQuery] = useState("");
  const [said, say] = useState("");
  const [failed, setFailed] = useState("");
  const [isAsked, setAsked] = useState(false);
  const picker = useRef<HTMLInputElement>(null);
  const found = listed.value.filter((one) => one.title.toLowerCase().includes(query.toLowerCase()));
  const read = async (file: File | undefined): Promise<void> => {
    if (!file) return;
    try {
      say(`${plural(await importAll(await file.text()), "conversation")} imported.`);
      setFailed("");
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  let heading = "";
  return (
    <nav class="side conversations" aria-label="Conversations">
      <div class="row">
        <Button
          label="New chat"
          icon="plus"
          kind="main"
          onClick={() => {
            startNew();
            onChosen();
            document.getElementById("composer")?.focus();
          }}
        />
      </div>
      {listed.value.length >= SEARCH_FROM && (
        <input type="search" aria-label="Search conversations" placeholder="Search" value={query} onInput={(event) => setQuery(event.currentTarget.value)} />
      )}
      {storeFailure.value && <Notice kind="info">{storeFailure.value}</Notice>}
      <ul class="list">
        {found.map((one) => {
          const date = day(one.updated);
          const isNew = date !== heading;
          heading = date;
          return [
            isNew && (
              <li class="date" key={`date-${date}`}>
                {date}
              </li>
            ),
            <li key={one.id} class={one.id === current.value.id ? "chosen" : ""}>
              <button
                type="button"
                class="quiet title"
                aria-current={one.id === current.value.id ? "true" : undefined}
                onClick={() => {
                  void openConversation(one.id);
                  onChosen();
                }}
              >
                <bdi>{one.title}</bdi>
              </button>
              <Button label={`Delete ${one.title}`} icon="trash" kind="quiet" hideText onClick={() => void drop(one.id)} />
            </li>,
          ];
        })}
        {!found.length && <li class="hint">{query ? "None has that title." : "What you ask is kept in this browser, and only here."}</li>}
      </ul>
      {failed && <Notice>{failed}</Notice>}
      {said && <Notice kind="info">{said}</Notice>}
      <div class="row side-foot">
        <Button label="Export" icon="down" kind="quiet" disabled={!listed.value.length} onClick={() => void exportAll().then((text) => download("headrace-conversations.json", text))} />
        <Button label="Import" icon="up" kind="quiet" onClick={() => picker.current?.click()} />
        <Button label="Delete all conversations" icon="trash" kind="quiet" hideText disabled={!listed.value.length} onClick={() => setAsked(true)} />
        <input
          ref={picker}
          type="file"
          accept="application/json,.json"
          class="sr-only"
          tabIndex={-1}
          aria-hidden="true"
          onChange={(event) => {
            void read(event.currentTarget.files?.[0]);
            event.currentTarget.value = "";
          }}
        />
      </div>
      <Dialog title="Delete all conversations?" open={isAsked} onClose={() => setAsked(false)}>
        <p>{plural(listed.value.length, "conversation")} in this browser will be gone. Export them first to keep a copy.</p>
        <div class="row">
          <Button
            label="Delete all"
            kind="danger"
            onClick={() => {
              void drop(...listed.value.map((one) => one.id));
              setAsked(false);
            }}
          />
          <Button label="Keep them" onClick={() => setAsked(false)} />
        </div>
      </Dialog>
    </nav>
  );
}
