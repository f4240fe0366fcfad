// Calls of the server's own API. The key is asked for and lives in sessionStorage only.
import { signal } from "@preact/signals";

const KEY_NAME = "headrace.key";

/** Whether a dialog should ask for a key: the server has refused the one that there is, or none. */
export const keyWanted = signal(false);
/** False while the server does not answer at all. */
export const online = signal(true);
/** Counts up when a key was given or the server answers again: what failed before is asked again. */
export const retried = signal(0);

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

export function getKey(): string {
  return sessionStorage.getItem(KEY_NAME) ?? "";
}

export function setKey(key: string): void {
  if (key) sessionStorage.setItem(KEY_NAME, key);
  else sessionStorage.removeItem(KEY_NAME);
  keyWanted.value = false;
  retried.value++;
}

export interface Call {
  body?: unknown;
  signal?: AbortSignal;
}

/** The reply of the server, or an ApiError with the server's own words. */
export async function call(path: string, { body, signal }: Call = {}): Promise<Response> {
  const headers: Record<string, string> = {};
  const key = getKey();
  if (key) headers["authorization"] = `Bearer ${key}`;
  const options: RequestInit = { headers, cache: "no-store" };
  if (signal) options.signal = signal;
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    options.method = "POST";
    options.body = JSON.stringify(body);
  }
  let reply: Response;
  try {
    reply = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    lost();
    throw new ApiError("The server does not answer. Is it running?", 0);
  }
  if (reply.ok) return reply;
  if (reply.status === 401) keyWanted.value = true;
  throw await refusal(reply);
}

export async function getJson<T>(path: string, options: Call = {}): Promise<T> {
  return (await (await call(path, options)).json()) as T;
}

async function refusal(reply: Response): Promise<ApiError> {
  const text = await reply.text().catch(() => "");
  let message = text.slice(0, 500) || `The server replied with ${reply.status}.`;
  let code: string | null = null;
  try {
    const error = (JSON.parse(text) as { error?: { message?: string; code?: string | null } | string }).error;
    if (typeof error === "string") message = error;
    else if (error?.message) {
      message = error.message;
      code = error.code ?? null;
    }
  } catch {
    // not JSON: the text itself is the message
  }
  return new ApiError(message, reply.status, code);
}

const PROBE_MS = 1500;
let probing = false;

/** The server was not reached: look for it until it is there again. */
function lost(): void {
  online.value = false;
  if (probing) return;
  probing = true;
  const probe = async (): Promise<void> => {
    try {
      const reply = await fetch("health", { cache: "no-store" });
      if (reply.status < 500) {
        probing = false;
        online.value = true;
        retried.value++;
        return;
      }
    } catch {
      // still away
    }
    setTimeout(() => void probe(), PROBE_MS);
  };
  setTimeout(() => void probe(), PROBE_MS);
}

/** The `data` of server-sent events, until the stream ends. */
export async function* events(reply: Response): AsyncGenerator<string> {
  const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let end: number;
      let from = 0;
      while ((end = rest.indexOf("\n\n", from)) >= 0) {
        const lines = rest.slice(from, end).split("\n");
        from = end + 2;
        const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
      rest = rest.slice(from);
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** What went wrong, for people. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
