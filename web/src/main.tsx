import { render, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Chat } from "./chat/Chat";
import { getKey, keyWanted, online, setKey } from "./lib/http";
import { isDark, nextTheme, theme } from "./lib/theme";
import { Button, Dialog, Field, Icon, Notice } from "./lib/ui";
import { Later } from "./lib/Later";

const PANES: { id: string; label: string; icon: string; view: () => JSX.Element }[] = [
  { id: "chat", label: "Chat", icon: "chat", view: () => <Chat /> },
  { id: "live", label: "Live", icon: "live", view: () => <Later load={async () => (await import("./live/Live")).Live} /> },
  { id: "adapt", label: "Adapt", icon: "adapt", view: () => <Later load={async () => (await import("./adapt/Adapt")).Adapt} /> },
  { id: "requests", label: "Requests", icon: "requests", view: () => <Later load={async () => (await import("./requests/Requests")).Requests} /> },
  { id: "playground", label: "Playground", icon: "play", view: () => <Later load={async () => (await import("./playground/Playground")).Playground} /> },
];

function usePane(): (typeof PANES)[number] {
  const read = (): (typeof PANES)[number] => PANES.find(({ id }) => location.hash.slice(1).split("/")[0] === id) ?? PANES[0]!;
  const [pane, setPane] = useState(read);
  useEffect(() => {
    const onChange = (): void => setPane(read());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return pane;
}

function App(): JSX.Element {
  const pane = usePane();
  const [isAsked, setAsked] = useState(false);
  const main = useRef<HTMLElement>(null);
  useEffect(() => {
    document.title = `${pane.label} · Headrace`;
  }, [pane]);
  return (
    <>
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="rail">
        <span class="brand">
          <svg viewBox="0 0 24 24" aria-hidden="true">
            <path d="M2 7c2.7-2 5.3-2 8 0s5.3 2 8 0l4-1.5M2 12.5c2.7-2 5.3-2 8 0s5.3 2 8 0l4-1.5M2 18c2.7-2 5.3-2 8 0s5.3 2 8 0l4-1.5" />
          </svg>
          <span>Headrace</span>
        </span>
        <nav aria-label="Panes">
          {PANES.map(({ id, label, icon }) => (
            <a key={id} href={`#${id}`} aria-current={id === pane.id ? "page" : undefined}>
              <Icon name={icon} />
              <span>{label}</span>
            </a>
          ))}
        </nav>
        <div class="rail-foot">
          <Button label={getKey() ? "Change the API key" : "Set an API key"} icon="key" kind="quiet" hideText onClick={() => setAsked(true)} />
          <Button label={`Theme: ${theme.value}`} icon={theme.value === "auto" ? "auto" : isDark.value ? "moon" : "sun"} kind="quiet" hideText onClick={nextTheme} />
        </div>
      </header>
      <main ref={main} id="content" tabIndex={-1}>
        {!online.value && (
          <div class="banner">
            <Notice>The server does not answer. The page goes on when it is there again.</Notice>
          </div>
        )}
        <pane.view key={pane.id} />
      </main>
      <KeyDialog
        open={isAsked || keyWanted.value}
        onClose={() => {
          setAsked(false);
          keyWanted.value = false;
        }}
      />
    </>
  );
}

function KeyDialog({ open, onClose }: { open: boolean; onClose: () => void }): JSX.Element {
  const box = useRef<HTMLInputElement>(null);
  return (
    <Dialog title="API key" open={open} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setKey(box.current?.value.trim() ?? "");
          onClose();
        }}
      >
        <Field label="Key of this server" hint="It is kept until this tab is closed. headrace keys add NAME makes one.">
          {(id, hint) => <input ref={box} id={id} aria-describedby={hint} type="password" autocomplete="off" spellcheck={false} defaultValue={getKey()} />}
        </Field>
        <div class="row">
          <Button label="Use this key" kind="main" type="submit" />
          {getKey() && (
            <Button
              label="Forget the key"
              onClick={() => {
                setKey("");
                onClose();
              }}
            />
          )}
          <span class="grow" />
          <a href="docs">API</a>
          <a href="page/licenses.txt">Licenses</a>
        </div>
      </form>
    </Dialog>
  );
}

const root = document.getElementById("app")!;
root.textContent = "";
render(<App />, root);
