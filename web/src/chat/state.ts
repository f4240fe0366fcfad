// The conversation that is open, and what can be done with it.
import { effect, signal } from "@preact/signals";
import { getJson, messageOf, retried } from "../lib/http";
import { listed, load, loadAll, readList, remove, save } from "../lib/store";
import { fill } from "./answering";
import {
  add,
  type Attachment,
  branch,
  type ChatNode,
  type Conversation,
  newConversation,
  NO_OPTIONS,
  type Options,
  parseExport,
  show,
  titleOf,
  type ToolResult,
} from "./conversation";

export interface ModelCard {
  id: string;
  state: string;
  context_length: number | null;
}

const DEFAULTS_NAME = "headrace.options";

export const models = signal<ModelCard[]>([]);
export const modelsFailure = signal<string | null>(null);
export const current = signal<Conversation>(newConversation("", keptOptions()));
/** Counts up when the conversation has changed: it is changed in place, since answers grow by the token. */
export const version = signal(0);
/** As `version`, but not for each part of an answer that grows. */
export const shape = signal(0);
/** The messages that are being written, by their ids, and how to stop them. */
export const running = signal<{ ids: Set<string>; abort: AbortController } | null>(null);
/** What a screen reader is told: whole sentences of the answer that is being written. */
export const spoken = signal<string[]>([]);

function keptOptions(): Options {
  try {
    const found = JSON.parse(localStorage.getItem(DEFAULTS_NAME) ?? "{}") as Partial<Options>;
    return { ...NO_OPTIONS, ...found };
  } catch {
    return { ...NO_OPTIONS };
  }
}

let frame = 0;

/** Show what has changed, at most once per picture of the screen. */
function changed(): void {
  if (!frame)
    frame = requestAnimationFrame(() => {
      frame = 0;
      version.value++;
    });
}

function refresh(): void {
  version.value++;
  shape.value++;
}

export async function readModels(): Promise<void> {
  try {
    models.value = (await getJson<{ data: ModelCard[] }>("v1/models")).data;
    modelsFailure.value = null;
  } catch (error) {
    modelsFailure.value = messageOf(error);
  }
}

effect(() => {
  void retried.value;
  void readModels();
});
void readList();

export async function openConversation(id: string): Promise<void> {
  const found = await load(id);
  if (!found) return;
  stop();
  current.value = { ...found, options: { ...NO_OPTIONS, ...found.options } };
  refresh();
}

export function startNew(): void {
  stop();
  const { model } = current.value;
  current.value = newConversation(model, keptOptions());
  refresh();
}

export async function rename(id: string, title: string): Promise<void> {
  const found = id === current.value.id ? current.value : await load(id);
  if (!found) return;
  found.title = titleOf(title);
  await save(found);
  refresh();
}

export async function drop(...ids: string[]): Promise<void> {
  if (ids.includes(current.value.id)) startNew();
  await remove(...ids);
}

const KEEP_MS = 500;
let keeping: ReturnType<typeof setTimeout> | undefined;

/** Each key of a box of theirs is told; the conversation is kept when no more come. */
export function setOptions(options: Options): void {
  current.value.options = options;
  localStorage.setItem(DEFAULTS_NAME, JSON.stringify({ ...options, schema: "", tools: "", format: "text", system: "", compare: "" }));
  version.value++;
  clearTimeout(keeping);
  keeping = setTimeout(keep, KEEP_MS);
}

export function setModel(model: string): void {
  current.value.model = model;
  keep();
}

function keep(): void {
  refresh();
  if (current.value.leaf !== null) void save(current.value);
}

export function stop(): void {
  running.value?.abort.abort();
}

/** Ask for an answer to the branch that ends with `parent`; `isCompared`, of the second model, too. */
async function answer(conversation: Conversation, parent: ChatNode, isCompared = false): Promise<void> {
  conversation.leaf = parent.id;
  const before = branch(conversation);
  const node = add(conversation, parent.id, "assistant", "");
  const second = isCompared ? conversation.options.compare : "";
  if (!second) return write(conversation, before, [[node, conversation.model]]);
  const other = add(conversation, parent.id, "assistant", "");
  [node.beside, other.beside, conversation.leaf] = [other.id, node.id, node.id];
  return write(conversation, before, [
    [node, conversation.model],
    [other, second],
  ]);
}

/** Write messages that follow the same branch, each by a model. */
async function write(conversation: Conversation, before: ChatNode[], asked: [ChatNode, string][], isContinuation = false): Promise<void> {
  stop();
  const abort = new AbortController();
  const ids = new Set(asked.map(([node]) => node.id));
  running.value = { ids, abort };
  spoken.value = [];
  refresh();
  void save(conversation);
  const one = async ([node, model]: [ChatNode, string]): Promise<void> => {
    const speech = new Speech(node.content.length);
    const took = (): void => {
      if (node === asked[0]![0]) speech.take(node.content); // two at a time cannot be listened to
      changed();
    };
    await fill(conversation, before, node, { signal: abort.signal, changed: took, isContinuation, model });
    speech.end(node.content, node.error);
    ids.delete(node.id);
    conversation.updated = Date.now();
    refresh();
  };
  await Promise.all(asked.map(one));
  if (running.value?.abort === abort) running.value = null;
  refresh();
  await save(conversation);
}

/** Announces an answer by the sentence. */
class Speech {
  constructor(private at: number) {}

  take(text: string): void {
    const fresh = text.slice(this.at);
    const end = Math.max(fresh.lastIndexOf(". "), fresh.lastIndexOf("\n"), fresh.lastIndexOf("? "), fresh.lastIndexOf("! "));
    if (end > 40) this.say(text, this.at + end + 1);
  }

  end(text: string, error: string | undefined): void {
    this.say(text, text.length);
    spoken.value = [...spoken.value, error ?? "The answer is complete."];
  }

  private say(text: string, to: number): void {
    const part = text.slice(this.at, to).trim();
    this.at = to;
    if (part) spoken.value = [...spoken.value.slice(-20), part];
  }
}

export function send(text: string, files: Attachment[]): void {
  const conversation = current.value;
  const node = add(conversation, conversation.leaf, "user", text);
  if (files.length) node.files = files;
  if (!text.trim() && files[0] && node.parent === null) conversation.title = titleOf(files[0].name);
  void answer(conversation, node, true);
}

/** Another version of a message, with an answer of its own. */
export function edit(node: ChatNode, text: string): void {
  const conversation = current.value;
  const fresh = add(conversation, node.parent, "user", text);
  if (node.files) fresh.files = node.files;
  if (node.parent === null) conversation.title = titleOf(text);
  void answer(conversation, fresh, true);
}

export function regenerate(node: ChatNode): void {
  const conversation = current.value;
  const parent = node.parent === null ? undefined : conversation.nodes[node.parent];
  if (parent) void answer(conversation, parent);
}

/** Let the model go on where its answer broke off. */
export function goOn(node: ChatNode): void {
  const conversation = current.value;
  if (!node.content) {
    regenerate(node);
    return;
  }
  conversation.leaf = node.id;
  void write(conversation, branch(conversation).slice(0, -1), [[node, conversation.model]], true);
}

/** Give the results of the tools that the model has called, and let it go on. */
export function giveResults(node: ChatNode, results: ToolResult[]): void {
  const conversation = current.value;
  const fresh = add(conversation, node.id, "tool", "");
  fresh.results = results;
  void answer(conversation, fresh);
}

export function showBranch(node: ChatNode): void {
  show(current.value, node);
  keep();
}

export async function exportAll(ids?: string[]): Promise<string> {
  const all = (await loadAll()).filter((one) => !ids || ids.includes(one.id));
  return JSON.stringify({ headrace_conversations: all }, null, 1);
}

/** Take over the conversations of an exported file; how many there were. */
export async function importAll(text: string): Promise<number> {
  const found = parseExport(text);
  await save(...found);
  if (found[0]) await openConversation(found[0].id);
  return found.length;
}

export { listed };
