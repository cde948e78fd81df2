/** What the page's modules share: what the server answers, and what is chosen. */

type SideName = "first" | "second";
type Average = "head" | "layer" | "model";
type ColourKind = "log" | "root" | "linear";
type Theme = "light" | "dark";
/** Keys that are hidden from queries, in a head; null: in all of them, or from all. */
type Cut = { kind: "cut"; layer: number | null; head: number | null; queries: Span | null; keys: Span };
/** A change of the model's attention: keys that are cut, or a head whose context is 0. */
type Change = Cut | { kind: "off"; layer: number; head: number };
type CutForm = { open: boolean; what: "cell" | "token" | "span"; where: "head" | "layer" | "all"; span: Zone | null };
/** The log-probability of a token without each head, `[layer][head]`, or without each span of keys − as it is. */
interface Measured<Values = number[]> {
  token: number;
  unchanged: number;
  effects: Values;
  spans: Span[] | null;
}
/** What the next token of a run rests on, as far as that was measured. */
type Effects = { run: string; heads: MeasuredHeads | null; keys: Measured | null };
/** Of many heads an estimate comes first, to first order; null: not measured yet. */
interface MeasuredHeads extends Omit<Measured<(number | null)[][]>, "token" | "spans"> {
  estimates?: (number | null)[][];
  /** Whether some are not measured yet. */
  partial?: boolean;
}
/** What the next token looks at and needs of each passage, as far as that was measured. */
type Passages = { run: string; spans: Span[]; measured: (Measured & { weights: number[]; without: number }) | null };
/** A sink of the model, and the number of heads that rest on it. */
type Rest = { key: number; heads: number };
/** A rectangle of the map: queries and keys. */
type Zone = { queries: Span; keys: Span };
/** What an entry of a pattern is: one of the views of `regard.lens.views`. */
type Shows = "weight" | "moved" | "toward" | "without";
/** A view as the switch has it; objection: why there is none of this text. */
type ShownView = { name: Shows; title: string; meaning: string; objection: string | null };
/** The head that writes the next token: its share of the lead over the next likeliest, and what is lost without it. */
interface Writer extends HeadPlace {
  source: number;
  against: string;
  share: number;
  margin: number;
  loss: number;
  decides: boolean;
}
type TabName = "steps" | "readouts" | "training";
/** First and stop: one past the last. */
type Span = [number, number];
/** Layer and head as the server takes them: a mean has a name in place of a number; without a view it is the weight. */
type Place = [layer: number | "mean", head: number | "mean", shows?: Shows];
type HeadName = { layer: number; head: number; average: Average };
/** A head by its place in its layer. */
type HeadPlace = { layer: number; head: number };
/** First query, first key, how many tokens along each side. */
type Zoom = { queries: number; keys: number; span: number };

interface Run {
  id: string;
  title: string;
  text: string | null;
  /** added: not written by the user, as those of a chat template. */
  tokens: { text: string; label: string; added?: boolean }[];
  length: number;
  causal: boolean;
  layers: { index: number; name: string; heads: number[] }[];
  next: Candidate[] | null;
  /** Whether there are queries and keys; without them the model runs again for each layer that is shown. */
  kept?: false;
  notes: string[];
  /** Added by the page: how tokens are written, and characters of the longest. */
  labels: string[];
  letters: number;
}

interface Candidate {
  token: number;
  label: string;
  probability: number;
  /** Of a changed run: as it is; of a text in which a word was swapped: with the word before. */
  before?: number;
  /** Which of the two is not known, but at most so large. */
  atMost?: "probability" | "before";
}

/** A word of the text in place of another: where it stands there, the word before, and the run with that. */
interface Swap {
  run: string;
  start: number;
  stop: number;
  old: string;
  was: Run;
}
/** The heads of the run before a swap put into the run now, one by one, and what becomes of the answer. */
interface Patched {
  /** The likeliest next token now, and before. */
  answers: [number, number];
  /** The log-probability of the answer, or the logit that the one before leads by: now, and before. */
  unchanged: number;
  other: number;
  /** What each head brings of it, `[layer][head]`. */
  values: (number | null)[][];
}

interface About {
  title: string;
  shape: string;
  /** What the model was trained on, in a sentence. */
  has_read?: string | null;
  /** What it costs that the page's numbers are rounded, in a sentence. */
  numbers?: string;
  writes: boolean;
  generates: boolean;
  example: string | null;
  examples?: { name: string; text: string }[];
  limits: { characters: number; tokens: number; generate: number };
  runs: string[];
  training?: number;
  /** Of a report: there is no server to ask. */
  views?: ShownView[];
  report?: boolean;
  /** Whether the model runs in the page, soon enough to follow what is typed. */
  live?: boolean;
  decimals?: number;
  start?: string;
}

type Score =
  | "resting"
  | "previous_token"
  | "first_token"
  | "current_token"
  | "induction"
  | "duplicate_token"
  | "separator"
  | "next_token"
  | "entropy"
  | "distance";

/** A head's scores by name, its role, and the run they are of. */
interface Figures extends Record<Score, number | null> {
  head: number;
  role: string;
  meaning: string;
  /** What the name rests on: the score, its interval and the number of queries. */
  evidence: string;
  score: number | null;
  margin: number | null;
  queries: number | null;
  undecided: string | null;
  /** The keys on which it rests. */
  sinks: number[];
  run: string;
}

interface Floats {
  values: Float32Array;
  rows: number;
  columns: number;
  heads: number;
}

/** A window of a map, in cells of block × block tokens. */
interface MapWindow {
  queries: Span;
  keys: Span;
  block: number;
}

/** What api.js asks the server for, and offline/api.js computes; `view`: a newer question ends the older. */
interface Api {
  /**
   * Calls back with how far a model is that is being fetched, in bytes, kept: by the browser; or how many seconds it
   * takes to read a text; null once that has ended.
   */
  onLoading(
    listener: (progress: { done: number; total: number; kept: boolean } | { seconds: number } | null) => void,
  ): void;
  health(): Promise<{ ok: boolean }>;
  about(): Promise<About>;
  open(text: string, view: string): Promise<Run>;
  patch(run: string, other: string, each: (line: StreamLine & Partial<Patched>) => void, signal: AbortSignal): Promise<void>;
  fetchRun(run: string, view: string): Promise<Run>;
  append(run: string, token: number, view: string): Promise<Run>;
  change(run: string, changes: Change[], view: string): Promise<Run>;
  generate(
    run: string,
    options: { tokens: number; temperature: number; seed: number | null },
    each: (line: StreamLine) => void,
    signal: AbortSignal,
  ): Promise<void>;
  /** `first`: the layer to begin with. */
  heads(run: string, each: (line: StreamLine) => void, view: string, first: number): Promise<void>;
  /** The views of a text; the wanted one is tried. */
  views(run: string, wanted: Shows, view: string): Promise<ShownView[]>;
  writer(run: string, view: string): Promise<Writer>;
  thumbnails(run: string, layer: number, size: number, shows: Shows, view: string): Promise<Floats>;
  map(run: string, place: Place, window: MapWindow, view: string): Promise<Floats>;
  /** Ends what a view asks for. */
  end(view: string): void;
  /** One query for each block of them, averaged over blocks of keys. */
  sketch(run: string, place: Place, block: number, view: string): Promise<Floats>;
  row(run: string, place: Place, query: number, view: string): Promise<Floats>;
  column(run: string, place: Place, key: number, view: string): Promise<Floats>;
  cell(run: string, place: Place, query: number, key: number, view: string): Promise<Cell>;
  /** With `each` it is called with how far they are; the signal stops them. */
  readouts(
    run: string,
    place: Place,
    view: string,
    options?: { each?: (line: StreamLine) => void; signal?: AbortSignal },
  ): Promise<Floats>;
  /** Ranks of keys that are written out, and a key. */
  steps(
    run: string,
    place: Place,
    query: number,
    keys: { first?: number; count?: number; picked?: number },
    view: string,
  ): Promise<Steps>;
  training(): Promise<TrainingHistory>;
  effects(run: string, over: "heads" | "keys", each: (line: StreamLine) => void, signal: AbortSignal): Promise<void>;
  passages(run: string, spans: Span[], each: (line: StreamLine) => void, signal: AbortSignal): Promise<void>;
  trained(step: number): Promise<Floats>;
}

interface Cell {
  weight: number;
  visible: boolean;
  score: number | null;
  logsumexp: number | null;
}

/** One key of a query, with the score after each step. */
interface StepKey extends Record<string, any> {
  position: number;
  rank: number;
  visible: boolean;
  key: number[];
  /** Where the values are known, and with them the context. */
  value: number[];
  score: number;
  weight: number;
  /** What the view makes of the weight, where that is another number. */
  entry?: number;
  masked: number | null;
}

interface Steps {
  scale: number;
  steps: string[];
  sink: boolean;
  query: number[];
  logsumexp: number | null;
  count: number;
  keys: StepKey[];
  picked: StepKey | null;
  rest: { count: number; weight: number; entry?: number };
  hidden: number;
  context: number[] | null;
}

interface TrainingHistory {
  steps: number[];
  names: string[];
  scores: (number | null)[][][][];
  roles: string[][][];
  losses: (number | null)[];
  tokens: number;
  kept: number[];
}

/** What a line of a stream holds: one of these. */
interface StreamLine {
  error?: string;
  /** What is measured. */
  over?: "heads" | "keys" | "layers";
  layer?: number;
  heads?: Figures[];
  run?: Run;
  /** Whether the model ended before it had drawn as many tokens as were asked for. */
  ended?: boolean;
  token?: number;
  text?: string;
  label?: string;
  done?: number;
  total?: number;
  effects?: number[] | number[][];
  unchanged?: number;
  /** The first-order estimate of each head's effect, `[layer][head]`. */
  estimates?: (number | null)[][];
  /** Measured effects of some heads: layer, head and effect. */
  measured?: [number, number, number][];
  weights?: number[];
}

/** A side as it is seen, whichever side's text and head it shares. */
interface Source extends HeadName {
  side: SideName;
  run: Run | null;
  heads: Map<number, Figures[]>;
  query: number | null;
  key: number | null;
  zoom: Zoom | null;
}

/** A side of the page: with two texts each has all of this, two heads of one text share the first's text. */
interface Side extends Omit<Source, "side"> {
  /** The key that a query attends to most, once it is known. */
  strongest: { question: string | null; key: number | null };
}

/** The opening is read from top to bottom; the panel has all instruments at once. */
type ViewName = "opening" | "panel";

interface State {
  about: About | null;
  view: ViewName;
  /** The text run without the head that the opening speaks of. */
  without: { of: string; layer: number; head: number; run: Run } | null;
  sides: Record<SideName, Side>;
  /** What the entries of all patterns are. */
  shows: Shows;
  /** The view that an address asks for, until it is known whether there is one. */
  wanted: Shows | null;
  /** The views that there are, of the text they were asked of. */
  views: { run: string; all: ShownView[] } | null;
  /** The head that writes the next token of a run of many heads, once it is known. */
  writer: (Writer & { run: string }) | null;
  hover: { query?: number | null; key?: number | null; side?: SideName };
  /** Null: as suits the length of the text. */
  colour: ColourKind | null;
  sort: "order" | Score;
  /** The role whose heads alone are shown; "" for all. */
  role: string;
  size: "names" | "grid";
  compare: "off" | "head" | "text" | "change";
  /** The first text as the model runs it when nothing is changed. */
  plain: Run | null;
  /** As it runs with the changes; null where there are none, or as long as it has not come. */
  changed: Run | null;
  changes: Change[];
  /** The word that was swapped to come to the first text. */
  swap: Swap | null;
  cutForm: CutForm;
  /** Whether clicks in the grid switch heads off. */
  switching: boolean;
  effects: Effects | null;
  passages: Passages | null;
  /** The keys of a run on which its heads rest, the most first; none where that was not looked for. */
  rests: { run: string; keys: Rest[] } | null;
  /** The run whose head the opening still has to choose. */
  choosing: Run | null;
  /** Whether the choice is the page's: no address or reader has named a head. */
  undecided: boolean;
  /** How far measuring them is, in words. */
  measuring: string;
  /** Whether the right map is the difference. */
  difference: boolean;
  active: SideName;
  tab: TabName;
  update: number | null;
  theme: "auto" | Theme;
  wide: boolean;
  folded: boolean;
  busy: string;
  problem: string;
  offline: boolean;
  cell: string;
  spoken: string;
  generating: boolean;
  grown: boolean;
  /** Colours of the window, not of the whole. */
  fit: boolean;
}

interface Inks {
  paper: string;
  panel: string;
  ink: string;
  soft: string;
  line: string;
  accent: string;
  mono: string;
  sans: string;
  serif: string;
  changed: string;
  query: string;
  key: string;
  theme: Theme;
}

/** The page's elements that are more than an `HTMLElement`, by id. */
interface PageElements {
  compare: HTMLSelectElement;
  sort: HTMLSelectElement;
  role: HTMLSelectElement;
  sequence: HTMLSelectElement;
  export: HTMLDetailsElement;
  keys: HTMLDialogElement;
  generate: HTMLButtonElement;
  "swap-word": HTMLInputElement;
  "generate-tokens": HTMLInputElement;
  "generate-heat": HTMLInputElement;
  "entry-text": HTMLTextAreaElement;
  "link-address": HTMLInputElement;
  "zoom-cell": HTMLButtonElement;
  overview: HTMLCanvasElement;
  scale: HTMLCanvasElement;
  fit: HTMLButtonElement;
  undo: HTMLButtonElement;
  redo: HTMLButtonElement;
  beside: HTMLButtonElement;
  "cut-make": HTMLButtonElement;
  "cut-query": HTMLInputElement;
  "cut-query-last": HTMLInputElement;
  "cut-key": HTMLInputElement;
  "cut-key-last": HTMLInputElement;
  "zoom-in": HTMLButtonElement;
  "zoom-out": HTMLButtonElement;
  "zoom-whole": HTMLButtonElement;
}

/** A side that has a text. */
type OpenSource = Source & { run: Run };

/** A canvas context, or an SvgSurface which writes the same calls down. */
type Surface = CanvasRenderingContext2D;

/** Where the parts of a map's drawing lie, in pixels. */
interface Layout {
  /** Whether tokens stand along the diagonal, where a causal pattern leaves room, without margins. */
  diagonal: boolean;
  left: number;
  top: number;
  side: number;
  right: number;
  bottom: number;
  bar: number;
  width: number;
  height: number;
}

/** A map's weights, for a window in cells of block × block tokens. */
interface Drawn extends Floats, MapWindow {
  key: string;
  exact: boolean;
  greatest: number;
}

interface Picture extends MapWindow {
  canvas: HTMLCanvasElement;
}

/** A cell that was zoomed into, and the steps from its vectors to its weight. */
interface OpenCell {
  at: { query: number; key: number };
  key: StepKey;
  query: number[];
  scale: number;
  logsumexp: number | null;
}

/** All that a map's drawing needs; `numbers`: the weights that are written into cells which have the room. */
interface MapDrawing {
  place: Layout;
  inks: Inks;
  zoom: Zoom | null;
  length: number;
  causal: boolean;
  pictures: Picture[];
  labels: string[];
  margins: { entropy: Float32Array; received: Float32Array } | null;
  numbers?: Drawn | null;
  opened?: OpenCell | null;
  cuts?: (Zone & { draft: boolean })[];
  scale: import("./static/colour.js").Scale;
  shows: Shows;
  query: number | null;
  key: number | null;
}

/** The steps of one query, with the keys that are written out so far. */
interface StepsShown extends Steps {
  entries: StepKey[];
  hiddenEntries: StepKey[];
  extra: StepKey | null;
  page: number;
  name: string;
  shows: Shows;
  at: number;
  run: Run;
  layer: number;
  head: number;
}

/** The cell that a side is at. */
interface Spot extends Source {
  column: import("./static/map.js").MapColumn;
  query: number;
  chosen: number | null;
  place: Place;
  name: string;
  cell: Cell | undefined;
}

interface Arrangement {
  small: boolean;
  byLayer: boolean;
  across: number;
  cell: number;
}

interface RequestOptions {
  view?: string | null;
  method?: string;
  body?: unknown;
  signal?: AbortSignal;
}

interface Curve {
  values: (number | null)[];
  chosen: boolean;
}

/** A matrix of a report, among all its numbers: where it begins, the step of its numbers, its width. */
interface PackedMatrix {
  at: number;
  step: number;
  dim: number;
}

interface PackedHead {
  query: PackedMatrix;
  key: PackedMatrix;
  value: PackedMatrix | null;
  logsumexp: { at: number; step: number };
  scale: number;
  softcap: number | null;
  alibi: number | null;
  sink: boolean;
  rows: number;
}

interface PackedRun {
  description: Run;
  scores: StreamLine[];
  layers: PackedHead[][];
  rows: ({ start: number[]; stop: number[] } | null)[];
}

/** What is chosen in a widget, by the numbers that Python has for it. */
type WidgetSelection = Record<"layer" | "head" | "query" | "key", number | null>;

/** A part of an answer of the kernel; the first has status and headers. */
interface AnswerPart {
  id: number;
  /** It takes longer: nothing of the answer yet. */
  pending?: boolean;
  status?: number;
  headers?: Record<string, string>;
  body?: Uint8Array;
  more?: boolean;
}

/** As it comes from the kernel, its body in a buffer beside it; `page` says for which document. */
interface KernelMessage extends Omit<AnswerPart, "body"> {
  page: string;
}

/** What anywidget gives a widget, as far as it is used. */
interface WidgetModel {
  send(content: object): void;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: "msg:custom", callback: (content: KernelMessage, buffers: DataView[]) => void): void;
  off(event: "msg:custom", callback: (content: KernelMessage, buffers: DataView[]) => void): void;
}
