// Small parts that every pane uses.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

const PATHS: Record<string, string> = {
  chat: "M4 5.5A1.5 1.5 0 0 1 5.5 4h13A1.5 1.5 0 0 1 20 5.5v9a1.5 1.5 0 0 1-1.5 1.5H10l-4.5 4v-4A1.5 1.5 0 0 1 4 14.5z",
  live: "M3 12h4l2.5-7 5 14 2.5-7h4",
  adapt: "M5 19a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM19 9a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM5 15V9a4 4 0 0 1 4-4h3M19 9v6a4 4 0 0 1-4 4h-3M9 2l3 3-3 3M15 22l-3-3 3-3",
  requests: "M4 6h16M4 12h16M4 18h10",
  play: "M9 4v5l-5 9.5A1 1 0 0 0 5 20h14a1 1 0 0 0 1-1.5L15 9V4M7.5 4h9M7 15h10",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  tune: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  clip: "M19 11.5l-7.5 7.5a4.5 4.5 0 0 1-6.4-6.4l8-8a3 3 0 0 1 4.300 4.300l-8 8a1.5 1.5 0 0 1-2.100-2.100l7-7",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M19 12a7 7 0 1 1-2-5M17 3v4h-4",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  menu: "M4 7h16M4 12h16M4 17h16",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  key: "M8 19a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM11 12l9-8M16 7.5l3 3",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  down: "M12 4v11M7 11l5 5 5-5M5 20h14",
  up: "M12 16V5M7 9l5-5 5 5M5 20h14",
  tool: "M14.5 6a4.5 4.5 0 0 0-6 5.800L4 16.5 7.5 20l4.700-4.5A4.5 4.5 0 0 0 18 9.5L15 12l-3-3z",
};

export function Icon({ name }: { name: string }): JSX.Element {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]!} />
    </svg>
  );
}

interface ButtonProps {
  label: string;
  icon?: string;
  onClick?: () => void;
  kind?: "main" | "quiet" | "danger";
  hideText?: boolean;
  disabled?: boolean;
  type?: "button" | "submit";
  pressed?: boolean;
  expanded?: boolean;
}

export function Button({ label, icon, onClick, kind, hideText, disabled, type = "button", pressed, expanded }: ButtonProps): JSX.Element {
  return (
    <button
      type={type}
      class={`${kind ?? ""} ${hideText ? "only-icon" : ""}`}
      disabled={disabled}
      onClick={onClick}
      aria-pressed={pressed}
      aria-expanded={expanded}
      {...(hideText ? { "aria-label": label, title: label } : {})}
    >
      {icon && <Icon name={icon} />}
      {!hideText && <span>{label}</span>}
    </button>
  );
}

interface FieldProps {
  label: string;
  hint?: string;
  children: (id: string, hintId: string | undefined) => ComponentChildren;
}

/** A labeled control; `children` gets the ids that tie them together. */
export function Field({ label, hint, children }: FieldProps): JSX.Element {
  const id = useId();
  const hintId = hint ? `${id}-hint` : undefined;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id, hintId)}
      {hint && (
        <p class="hint" id={hintId}>
          {hint}
        </p>
      )}
    </div>
  );
}

export function Notice({ kind = "error", children }: { kind?: "error" | "info"; children: ComponentChildren }): JSX.Element {
  return (
    <div class={`notice ${kind}`} role={kind === "error" ? "alert" : "status"}>
      {children}
    </div>
  );
}

interface DialogProps {
  title: string;
  open: boolean;
  onClose: () => void;
  children: ComponentChildren;
}

/** A modal dialog of the browser's own: it keeps the focus, and Escape closes it. */
export function Dialog({ title, open, onClose, children }: DialogProps): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  const isClosing = useRef(false);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    if (!dialog) return;
    if (open && !dialog.open) dialog.showModal();
    if (!open && dialog.open) {
      isClosing.current = true;
      dialog.close();
    }
  }, [open]);
  const told = (): void => {
    if (!isClosing.current) onClose();
    isClosing.current = false; // the event of a dialog that was closed from here comes when it may be wanted again
  };
  return (
    <dialog ref={ref} aria-labelledby={id} onClose={told}>
      <div class="dialog-head">
        <h2 id={id}>{title}</h2>
        <Button label="Close" icon="close" kind="quiet" hideText onClick={onClose} />
      </div>
      {open && children}
    </dialog>
  );
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // over plain HTTP from another machine there is no clipboard
  }
}

export function CopyButton({ text, label = "Copy" }: { text: () => string; label?: string }): JSX.Element {
  const [said, say] = useState("");
  const copy = async (): Promise<void> => {
    say((await copyText(text())) ? "Copied" : "Not allowed here");
    setTimeout(() => say(""), 1500);
  };
  return <Button label={said || label} icon="copy" kind="quiet" onClick={() => void copy()} />;
}

/** Give the person a file. */
export function download(name: string, text: string, type = "application/json"): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
