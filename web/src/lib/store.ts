// Conversations in the browser (IndexedDB): a list with what the sidebar shows, and each conversation whole.
import { signal } from "@preact/signals";
import type { Conversation } from "../chat/conversation";

export interface Listed {
  id: string;
  title: string;
  updated: number;
}

const NAME = "headrace";
const LIST = "list";
const WHOLE = "conversations";

/** The list, newest first. */
export const listed = signal<Listed[]>([]);
/** Why nothing is kept, where the browser does not let us. */
export const storeFailure = signal<string | null>(null);

const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(NAME) : null;
channel?.addEventListener("message", () => void readList());

let opened: Promise<IDBDatabase> | null = null;

function open(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(LIST, { keyPath: "id" });
      request.result.createObjectStore(WHOLE, { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("the browser refused"));
  });
  return opened;
}

async function run<T>(mode: IDBTransactionMode, work: (list: IDBObjectStore, whole: IDBObjectStore) => IDBRequest<T> | null): Promise<T | null> {
  try {
    const database = await open();
    return await new Promise<T | null>((resolve, reject) => {
      const transaction = database.transaction([LIST, WHOLE], mode);
      const request = work(transaction.objectStore(LIST), transaction.objectStore(WHOLE));
      transaction.oncomplete = () => resolve(request ? request.result : null);
      transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("the browser refused"));
    });
  } catch (error) {
    storeFailure.value = `This browser does not keep conversations: ${error instanceof Error ? error.message : String(error)}`;
    return null;
  }
}

export async function readList(): Promise<void> {
  const found = await run<Listed[]>("readonly", (list) => list.getAll() as IDBRequest<Listed[]>);
  if (found) listed.value = found.sort((one, other) => other.updated - one.updated);
}

export async function load(id: string): Promise<Conversation | null> {
  return (await run("readonly", (_, whole) => whole.get(id) as IDBRequest<Conversation | undefined>)) ?? null;
}

export async function loadAll(): Promise<Conversation[]> {
  return (await run("readonly", (_, whole) => whole.getAll() as IDBRequest<Conversation[]>)) ?? [];
}

export async function save(...conversations: Conversation[]): Promise<void> {
  await run("readwrite", (list, whole) => {
    for (const one of conversations) {
      list.put({ id: one.id, title: one.title, updated: one.updated });
      whole.put(one);
    }
    return null;
  });
  await readList();
  channel?.postMessage("changed");
}

export async function remove(...ids: string[]): Promise<void> {
  await run("readwrite", (list, whole) => {
    for (const id of ids) {
      list.delete(id);
      whole.delete(id);
    }
    return null;
  });
  await readList();
  channel?.postMessage("changed");
}
