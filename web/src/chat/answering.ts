// Asks the server for an answer and fills a message with it as it arrives.
import { call, events, messageOf, ApiError } from "../lib/http";
import { type ChatNode, type Conversation, type ExplainNode, type Options, withFiles } from "./conversation";

interface Chunk {
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string;
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
    finish_reason?: string | null;
  }[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details?: { cached_tokens?: number };
    completion_tokens_details?: { reasoning_tokens?: number };
  } | null;
  timings?: { predicted_per_second: number };
  model?: string;
  warnings?: { param: string; message: string }[];
  explain?: ExplainNode;
  error?: { message: string };
}

/** The messages of a branch as the API takes them. */
export function messages(system: string, nodes: ChatNode[]): object[] {
  const found: object[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const node of nodes) {
    if (node.role === "user") found.push({ role: "user", content: withFiles(node) });
    else if (node.role === "tool")
      for (const result of node.results ?? []) found.push({ role: "tool", tool_call_id: result.id, content: result.content });
    else {
      const calls = (node.calls ?? []).map((one) => ({ id: one.id, type: "function", function: { name: one.name, arguments: one.arguments } }));
      found.push({ role: "assistant", content: node.content || (calls.length ? null : ""), ...(calls.length ? { tool_calls: calls } : {}) });
    }
  }
  return found;
}

function numberOf(text: string, name: string, isWhole = false): number | undefined {
  if (!text.trim()) return undefined;
  const value = Number(text);
  if (!Number.isFinite(value) || (isWhole && !Number.isInteger(value))) throw new ApiError(`${name} is "${text}", which is not ${isWhole ? "a whole number" : "a number"}.`, 400);
  return value;
}

function jsonOf(text: string, name: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(`${name} is not valid JSON: ${messageOf(error)}`, 400);
  }
}

/** The fields of the request that the options stand for; what is empty is left to the model's own defaults. */
export function fields(options: Options): Record<string, unknown> {
  const found: Record<string, unknown> = {
    temperature: numberOf(options.temperature, "Temperature"),
    top_p: numberOf(options.topP, "Top p"),
    top_k: numberOf(options.topK, "Top k", true),
    max_tokens: numberOf(options.maxTokens, "Max tokens", true),
    seed: numberOf(options.seed, "Seed", true),
    reasoning_effort: options.effort || undefined,
  };
  if (options.tools.trim()) {
    const tools = jsonOf(options.tools, "Tools");
    found["tools"] = (Array.isArray(tools) ? tools : [tools]).map((tool: unknown) =>
      typeof tool === "object" && tool !== null && "function" in tool ? tool : { type: "function", function: tool },
    );
  }
  if (options.format === "json") found["response_format"] = { type: "json_object" };
  if (options.format === "schema")
    found["response_format"] = { type: "json_schema", json_schema: { name: "answer", schema: jsonOf(options.schema || "{}", "The JSON schema"), strict: true } };
  return found;
}

/**
 * Fill `node`, the last message of the branch `before` it, until the answer ends. `changed` is called after each
 * part. The `model` is asked, "" for the server's default. With `isContinuation` what the node has already is kept, and the model goes on from there.
 */
export async function fill(
  conversation: Conversation,
  before: ChatNode[],
  node: ChatNode,
  { signal, changed, model, isContinuation = false }: { signal: AbortSignal; changed: () => void; model: string; isContinuation?: boolean },
): Promise<void> {
  const { options } = conversation;
  const start = performance.now();
  const passed = (): number => (performance.now() - start) / 1000;
  const facts = (node.facts = { model } as NonNullable<ChatNode["facts"]>);
  delete node.error;
  if (options.format !== "text") node.structured = true;
  try {
    const body = {
      model: model || undefined,
      messages: messages(options.system, isContinuation ? [...before, node] : before),
      stream: true,
      stream_options: { include_usage: true },
      explain: options.explain || undefined,
      ...(isContinuation ? { continue_final_message: true, add_generation_prompt: false } : {}),
      ...fields(options),
    };
    const reply = await call("v1/chat/completions", { body, signal });
    const id = reply.headers.get("x-request-id");
    if (id) facts.requestId = id;
    let isDone = false;
    for await (const data of events(reply)) {
      if (data === "[DONE]") {
        isDone = true;
        break;
      }
      take(node, JSON.parse(data) as Chunk, passed);
      changed();
    }
    if (!isDone && !node.error) node.error = LOST;
  } catch (error) {
    if (signal.aborted) facts.finish = "stopped";
    else node.error = error instanceof ApiError ? error.message : LOST;
  }
  facts.totalS = passed();
  changed();
}

export const LOST = "The connection to the server was lost before the answer was complete.";

function take(node: ChatNode, chunk: Chunk, passed: () => number): void {
  const facts = node.facts!;
  if (chunk.error) node.error = chunk.error.message;
  if (chunk.model) facts.model = chunk.model;
  if (chunk.timings?.predicted_per_second) facts.tokensPerS = chunk.timings.predicted_per_second;
  if (chunk.explain) node.explain = chunk.explain;
  if (chunk.warnings?.length) facts.warnings = chunk.warnings.map((one) => one.message);
  if (chunk.usage && !chunk.choices?.length) {
    facts.promptTokens = chunk.usage.prompt_tokens;
    facts.completionTokens = chunk.usage.completion_tokens;
    facts.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
    facts.reasoningTokens = chunk.usage.completion_tokens_details?.reasoning_tokens ?? 0;
  }
  for (const choice of chunk.choices ?? []) {
    const { delta } = choice;
    if (choice.finish_reason) facts.finish = choice.finish_reason;
    if (!delta) continue;
    if (delta.content || delta.reasoning_content || delta.tool_calls) facts.firstTokenS ??= passed();
    if (delta.content) node.content += delta.content;
    if (delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
    for (const part of delta.tool_calls ?? []) {
      const calls = (node.calls ??= []);
      const one = (calls[part.index] ??= { id: "", name: "", arguments: "" });
      if (part.id) one.id = part.id;
      if (part.function?.name) one.name = part.function.name;
      one.arguments += part.function?.arguments ?? "";
    }
  }
}
