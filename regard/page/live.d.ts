/** What the modules of static/live share: a model that runs in the page. */

/** The fields of `regard.gpt.GPTConfig`, and what follows from them. */
interface GPTConfig {
  vocab_size: number;
  context: number;
  layers: number;
  heads: number;
  dim: number;
  positions: "learned" | "rotary";
  /** By which each pair of channels rotates, in radians a position; null where positions are learned. */
  rotary_frequencies: number[] | null;
  groups: number;
  head_dim: number;
  /** Whether the embedding makes the logits. */
  tied: boolean;
  hidden_dim: number;
  qk_norm: boolean;
  /** Of each layer; null where it sees the whole context. */
  windows: (number | null)[];
  norm: "layer" | "rms";
  norm_eps: number;
  mlp: "gelu" | "swiglu" | "geglu";
  /** What token embeddings are multiplied by where they are read. */
  embedding_factor: number;
}

/** Where a change is made; null: in all layers, in all heads. */
interface Where {
  layer: number | null;
  head: number | null;
}
/** Some queries' scores of some keys; null: all queries. */
interface Scores extends Where {
  queries: Span | null;
  keys: Span;
}

/** A change of a model's attention: the methods of `regard.Intervention`, in their words. */
type Intervention = (Where & { kind: "ablate" }) | (Scores & { kind: "knock_out" }) | Replacement;

/** A head of one layer in whose place something else is added to the stream at each position, (T, E). */
type Replacement = { kind: "replace"; layer: number; head: number; added: Float32Array };

/**
 * What a worker starts from: the model as JSON, the kernels and its weights as text, and the text that is open at
 * first; base: the address of the folder where larger weights lie.
 */
interface LiveStart {
  model: string;
  kernels: string;
  numbers: string;
  base: string;
  title: string;
  first: { ids: number[]; notes: string[] };
}
/** A request of the page. */
interface LiveRequest {
  id: number;
  name: string;
  args: unknown[];
}
/** What a worker is to its own code. */
interface WorkerScope {
  onmessage: (event: { data: { start: LiveStart } | { cancel: number } | LiveRequest }) => void;
  postMessage(message: unknown, transfer: Transferable[]): void;
}
