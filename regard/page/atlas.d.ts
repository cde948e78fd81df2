/** What the modules of static/atlas share: the data that `regard/page/atlas` writes. */

/** Of static/about.js, a script of its own. */
declare const regardAtlas: { about: AtlasAbout; columns: AtlasColumn[] };

/** Where an atlas comes from; fields that it lacks are left out. */
interface AtlasAbout {
  model?: string;
  model_fingerprint?: string;
  corpus?: string[];
  documents?: number;
  tokens?: number;
  /** Documents that were left out, since another is the same. */
  duplicates?: number;
  /** Documents longer than the context, cut into strides. */
  strided?: number;
  length?: number;
  seed?: number;
  effects?: { documents: number; share: number } | null;
  made_with?: string;
  torch?: string;
  threads?: number;
}

interface AtlasColumn {
  name: string;
  title: string;
  /** In a sentence. */
  meaning: string;
  unit: string;
  group: string;
}

/** A head's row of the table; null: not measured. */
interface AtlasHead extends HeadPlace {
  role: string | null;
  words: string;
  evidence: string;
  /** Whether its name holds among all heads of the model. */
  discovery: boolean | null;
  /** In the order of the columns. */
  values: (number | null)[];
  /** Half widths of 95 % intervals. */
  margins: (number | null)[];
}

interface AtlasOverview {
  heads: AtlasHead[];
}

/** A key of a position's, or a query; tokens and the place of its own among them where it lies outside the window. */
type AtlasLink = [position: number, weight: number | null, moved: number | null, tokens?: string, at?: number];

/** A position of a document in its window, with its strongest links. */
type AtlasExample = [
  source: number,
  position: number,
  start: number,
  tokens: string,
  value: number | null,
  rest: number | null,
  moved: number | null,
  toward: number | null,
  effect: number | null,
  decile: number | null,
  links: AtlasLink[],
];

type AtlasList = "moved" | "received" | "effect" | "deciles" | "sample";

interface AtlasDetails {
  row: AtlasHead;
  previous: [layer: number, head: number] | null;
  next: [layer: number, head: number] | null;
  /** The share of the weight on each kind of sink. */
  resting: Record<string, number | null> | null;
  /** The share of the weight beside the sinks, by distance; the last bin has no end. */
  profile: { edges: number[]; share: (number | null)[]; uniform: (number | null)[] } | null;
  classes: {
    query?: Record<string, Partial<Record<"queries" | "resting" | "entropy" | "moved" | "toward", number | null>>>;
    key?: Record<string, Partial<Record<"share" | "uniform", number | null>>>;
  } | null;
  /** Of each row's largest weight beside the sinks. */
  histogram: { edges: number[]; counts: number[] } | null;
  needed: {
    tokens: string;
    loss: number;
    without: number;
    control: string | null;
    without_control: number | null;
    queries: number;
    margin: number | null;
  } | null;
  sources: string[];
  examples: Partial<Record<AtlasList, AtlasExample[]>>;
}
