// A conversation as a tree: every message has the one that it follows. Editing and regenerating add a sibling, and
// `leaf` says which branch is shown.

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface ToolResult {
  id: string;
  name: string;
  content: string;
}

export interface Attachment {
  name: string;
  text: string;
}

/** What is known about an answer. Seconds as this browser has seen them. */
export interface AnswerFacts {
  model: string;
  promptTokens?: number;
  cachedTokens?: number;
  completionTokens?: number;
  reasoningTokens?: number;
  tokensPerS?: number;
  firstTokenS?: number;
  totalS?: number;
  finish?: string;
  requestId?: string;
  warnings?: string[];
}

export interface ExplainNode {
  name: string;
  measured_s: number;
  predicted_s?: number;
  detail?: Record<string, unknown>;
  children?: ExplainNode[];
}

export type Role = "user" | "assistant" | "tool";

export interface ChatNode {
  id: string;
  parent: string | null;
  role: Role;
  content: string;
  created: number;
  reasoning?: string;
  calls?: ToolCall[];
  results?: ToolResult[];
  files?: Attachment[];
  facts?: AnswerFacts;
  explain?: ExplainNode;
  error?: string;
  structured?: boolean;
  /** The id of the answer of another model to the same message, which is shown beside it. */
  beside?: string;
}

export interface Options {
  system: string;
  temperature: string;
  topP: string;
  topK: string;
  maxTokens: string;
  seed: string;
  effort: string;
  tools: string;
  format: "text" | "json" | "schema";
  schema: string;
  explain: boolean;
  /** A second model that answers, too. */
  compare: string;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  model: string;
  options: Options;
  nodes: Record<string, ChatNode>;
  leaf: string | null;
}

export const NO_OPTIONS: Options = {
  system: "",
  temperature: "",
  topP: "",
  topK: "",
  maxTokens: "",
  seed: "",
  effort: "",
  tools: "",
  format: "text",
  schema: "",
  explain: true,
  compare: "",
};

export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(model: string, options: Options = NO_OPTIONS): Conversation {
  const now = Date.now();
  return { id: newId(), title: "New chat", created: now, updated: now, model, options: { ...options }, nodes: {}, leaf: null };
}

/** The messages of the branch that is shown, first to last. */
export function branch(conversation: Conversation): ChatNode[] {
  const found: ChatNode[] = [];
  const seen = new Set<string>();
  let id = conversation.leaf;
  while (id !== null && !seen.has(id)) {
    const node: ChatNode | undefined = conversation.nodes[id];
    if (!node) break;
    seen.add(id);
    found.push(node);
    id = node.parent;
  }
  return found.reverse();
}

/** A message and its alternatives, oldest first. */
export function siblings(conversation: Conversation, node: ChatNode): ChatNode[] {
  return Object.values(conversation.nodes)
    .filter((other) => other.parent === node.parent)
    .sort((one, other) => one.created - other.created || (one.id < other.id ? -1 : 1));
}

export function add(conversation: Conversation, parent: string | null, role: Role, content: string): ChatNode {
  const latest = Math.max(0, ...Object.values(conversation.nodes).map((node) => node.created));
  const node: ChatNode = { id: newId(), parent, role, content, created: Math.max(Date.now(), latest + 1) };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  conversation.updated = Date.now();
  if (role === "user" && parent === null && conversation.title === "New chat") conversation.title = titleOf(content);
  return node;
}

/** The answers that are shown for this one: itself, or that and the one beside it, in the order they were asked for. */
export function pairOf(conversation: Conversation, node: ChatNode): ChatNode[] {
  const other = node.beside === undefined ? undefined : conversation.nodes[node.beside];
  if (other === undefined || other.parent !== node.parent || other.id === node.id) return [node];
  return other.created < node.created ? [other, node] : [node, other];
}

export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0] ?? "";
  return line.length > 60 ? `${line.slice(0, 57)}…` : line || "New chat";
}

/** Show the branch of `node`, down to the newest message that follows it. */
export function show(conversation: Conversation, node: ChatNode): void {
  let last = node;
  for (;;) {
    const next = Object.values(conversation.nodes)
      .filter((other) => other.parent === last.id)
      .sort((one, other) => other.created - one.created)[0];
    if (!next) break;
    last = next;
  }
  conversation.leaf = last.id;
}

const FENCE = /`{3,}/g;

/** The text of a message with its files, each in a fence that its own text cannot end. */
export function withFiles(node: ChatNode): string {
  const parts = (node.files ?? []).map((file) => {
    const longest = Math.max(2, ...(file.text.match(FENCE) ?? []).map((found) => found.length));
    const fence = "`".repeat(longest + 1);
    return `File ${JSON.stringify(file.name)}:\n${fence}\n${file.text}\n${fence}`;
  });
  return [...parts, node.content].filter(Boolean).join("\n\n");
}

// --- Import -------------------------------------------------------------------------------------------------

const MAX_IMPORTED = 2000;

/** Conversations of an exported file. Throws an Error that says what is wrong with it. */
export function parseExport(text: string): Conversation[] {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  const list = (data as { headrace_conversations?: unknown }).headrace_conversations;
  if (!Array.isArray(list)) throw new Error('The file has no "headrace_conversations": it is not an export of this page.');
  if (list.length > MAX_IMPORTED) throw new Error(`The file has ${list.length} conversations, at most ${MAX_IMPORTED} can be read at a time.`);
  return list.map(checked);
}

function checked(given: unknown, index: number): Conversation {
  const one = given as Partial<Conversation>;
  const where = `Conversation ${index + 1} of the file`;
  if (typeof one !== "object" || one === null || typeof one.nodes !== "object" || one.nodes === null) throw new Error(`${where} has no messages.`);
  const fresh = newConversation(text(one.model), { ...NO_OPTIONS, ...strings(one.options) });
  fresh.title = text(one.title) || "Imported chat";
  fresh.created = number(one.created) ?? fresh.created;
  fresh.updated = number(one.updated) ?? fresh.updated;
  if (typeof one.id === "string" && /^[\da-f]{8,64}$/.test(one.id)) fresh.id = one.id;
  for (const [id, node] of Object.entries(one.nodes)) fresh.nodes[id] = checkedNode(id, node, where);
  fresh.leaf = typeof one.leaf === "string" && fresh.nodes[one.leaf] ? one.leaf : null;
  return fresh;
}

function checkedNode(id: string, node: ChatNode, where: string): ChatNode {
  if (typeof node !== "object" || node === null || !["user", "assistant", "tool"].includes(node.role) || typeof node.content !== "string")
    throw new Error(`${where} has a message without role or content.`);
  const found: ChatNode = { id, parent: typeof node.parent === "string" ? node.parent : null, role: node.role, content: node.content, created: number(node.created) ?? 0 };
  if (typeof node.reasoning === "string") found.reasoning = node.reasoning;
  if (typeof node.error === "string") found.error = node.error;
  if (typeof node.beside === "string") found.beside = node.beside;
  if (node.structured) found.structured = true;
  if (Array.isArray(node.calls)) found.calls = node.calls.map((call) => ({ id: text(call?.id), name: text(call?.name), arguments: text(call?.arguments) }));
  if (Array.isArray(node.results)) found.results = node.results.map((one) => ({ id: text(one?.id), name: text(one?.name), content: text(one?.content) }));
  if (Array.isArray(node.files)) found.files = node.files.map((file) => ({ name: text(file?.name), text: text(file?.text) }));
  if (typeof node.facts === "object" && node.facts !== null) found.facts = checkedFacts(node.facts);
  if (isTree(node.explain)) found.explain = node.explain;
  return found;
}

function checkedFacts(given: AnswerFacts): AnswerFacts {
  const facts: AnswerFacts = { model: text(given.model) };
  for (const name of ["promptTokens", "cachedTokens", "completionTokens", "reasoningTokens", "tokensPerS", "firstTokenS", "totalS"] as const) {
    const value = number(given[name]);
    if (value !== undefined) facts[name] = value;
  }
  if (typeof given.finish === "string") facts.finish = given.finish;
  return facts;
}

function isTree(given: unknown, depth = 0): given is ExplainNode {
  const node = given as Partial<ExplainNode> | null;
  return (
    typeof node === "object" && node !== null && depth < 20 && typeof node.name === "string" && typeof node.measured_s === "number" &&
    (node.children === undefined || (Array.isArray(node.children) && node.children.every((child) => isTree(child, depth + 1))))
  );
}

function strings(given: unknown): Partial<Options> {
  const found: Record<string, unknown> = {};
  for (const [name, value] of Object.entries((given ?? {}) as object)) if (name in NO_OPTIONS && typeof value === typeof NO_OPTIONS[name as keyof Options]) found[name] = value;
  return found as Partial<Options>;
}

function text(given: unknown): string {
  return typeof given === "string" ? given : "";
}

function number(given: unknown): number | undefined {
  return typeof given === "number" && Number.isFinite(given) ? given : undefined;
}
