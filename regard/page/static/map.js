/** A column of the map panel: which head, its picture, and what the pointer does to it. */
import * as api from "./api.js";
import { differenceScale, picture, scaleOf } from "./colour.js";
import { byId, framed, make, markStale, settled } from "./dom.js";
import { hit, layout, paintMap } from "./draw_map.js";
import { count, named, placeName } from "./format.js";
import { listen } from "./gestures.js";
import { endOthers, readoutsOf } from "./along.js";
import { awaitAnswer } from "./answers.js";
import { during } from "./pending.js";
import { around, glide } from "./glide.js";
import { MapTitle } from "./map_title.js";
import { DIFFERENCE, isDifference, subtract } from "./difference.js";
import { cutsOn, drawSpan } from "./cut.js";
import { OpenCells } from "./open_cell.js";
import { areWeights, greatestOf, readoutOf } from "./quantities.js";
import {
  activeSide,
  change,
  colourNow,
  get,
  keyNow,
  openSourceOf,
  placeOf,
  queryNow,
  runOf,
  set,
  sourceOf,
  strongestKey,
  subscribe,
} from "./store.js";
import { FINER, FIRST, LONG, sketch } from "./sketch.js";
import { prepared } from "./canvas.js";
import { inks } from "./theme.js";
import { requestFor, isSameZoom, isWhole, moved, scaled, whole } from "./zoom.js";

/** What a voice calls the map of a view. @type {Record<Shows, string>} */
const MAPS = {
  weight: "Map",
  moved: "Map of what is moved",
  toward: "Map of what is added to the answer",
  without: "Map of what is beside the sink",
};
const FINEST = 1400; // cells along a side: half as many more are asked for at most, and 2,048 are given

export class MapColumn {
  /** @param {SideName} side @param {HTMLElement} root */
  constructor(side, root) {
    this.side = side;
    this.root = root;
    this.place = layout(300, 300, 1);
    /** The window's weights. @type {Drawn|null} */
    this.sharp = null;
    /** The whole's: it stands in for what has not come yet, and says how the colours go. @type {Drawn|null} */
    this.coarse = null;
    /** @type {{of: string, entropy: Float32Array, received: Float32Array}|null} */
    this.margins = null;
    /** @type {Map<string, HTMLCanvasElement>} */
    this.pictures = new Map();
    this.asking = { sharp: "", coarse: "" };
    this.wanted = ""; // run, layer and head
    this.shape = ""; // layer and head
    this.title = new MapTitle(side, root);
    this.opened = new OpenCells(side, () => this.redraw());
    this.gliding = false;
    this.sketching = false;
    this.extra = make("div");
    this.canvas = make("canvas", { tabIndex: 0, role: "img" });
    this.field = make("div", { className: "field" }, this.canvas);
    root.append(this.title.root, this.extra, this.field);
    this.#listen();
    this.redraw = framed(() => this.#draw());
    this.#ask = settled(12, () => this.#load());
    new ResizeObserver(() => this.#resized()).observe(this.field);
    document.addEventListener("inks", () => this.#recolour());
    document.addEventListener("readouts", () => this.wanted && !this.root.hidden && this.#begin(this.wanted));
    subscribe("hover query key changes cutForm difference", () => this.redraw());
    subscribe("colour fit", () => this.#recolour());
    subscribe("view shows", () => this.#resized());
    subscribe("run layer head average shows compare wide zoom", () => this.#changed());
  }

  #ask;

  /** What this column shows. */
  source() {
    return sourceOf(this.side);
  }

  /** What it shows, where there is a text for sure. */
  openSourceOf() {
    return openSourceOf(this.side);
  }

  /** Changes the window, here and where it is linked. */
  zoomTo(/** @type {Zoom|null} */ zoom) {
    change({ zoom }, this.side);
  }

  zoomBy(/** @type {number} */ factor, /** @type {{x: number, y: number}|undefined} */ at = undefined) {
    const { run, zoom } = this.source();
    if (run) this.zoomTo(scaled(zoom, run.length, factor, at));
  }

  /** Moves the window in one go: to the whole, or into the cell that is looked at. */
  glideTo(/** @type {"whole"|"cell"} */ where) {
    const { run, zoom } = this.source();
    if (!run) return;
    const query = queryNow(this.side);
    const key = keyNow(this.side) ?? strongestKey(this.side) ?? query;
    const { wanted } = this;
    let now = zoom;
    this.gliding = true;
    glide(zoom, where === "cell" ? around(query, key, run.length) : null, run.length, (next, last) => {
      const mine = isSameZoom(this.source().zoom, now) && this.wanted === wanted; // nobody moved it meanwhile
      this.gliding = mine && !last;
      if (mine) this.zoomTo((now = next));
      if (!this.gliding) this.#ask();
      return mine;
    });
  }

  panBy(/** @type {number} */ x, /** @type {number} */ y) {
    const { run, zoom } = this.source();
    if (run && zoom) this.zoomTo(moved(zoom, run.length, x, y));
  }

  #listen() {
    this.root.addEventListener("pointerdown", () => set({ active: this.side }));
    this.root.addEventListener("focusin", () => set({ active: this.side }));

    const spot = (/** @type {number} */ x, /** @type {number} */ y) => {
      const { run, zoom } = this.source();
      return run ? hit(this.place, zoom, run.length, x, y) : null;
    };
    const inside = (/** @type {number} */ x, /** @type {number} */ y) => ({
      x: (x - this.place.left) / this.place.side,
      y: (y - this.place.top) / this.place.side,
    });
    listen(this.canvas, {
      hover: (x, y) => {
        const at = spot(x, y);
        set({ hover: at ? { ...at, side: this.side } : {} });
      },
      leave: () => set({ hover: {} }),
      click: (x, y) => {
        const at = spot(x, y);
        if (!at) return;
        change({ query: at.query, key: at.key }, this.side);
        set({ hover: { ...at, side: this.side } });
      },
      draw: (x0, y0, x, y) => {
        const { run, zoom } = this.source();
        const [from, to] = [spot(x0, y0), run && hit(this.place, zoom, run.length, x, y, true)];
        return Boolean(from && to && drawSpan(from, to));
      },
      pan: (dx, dy, x, y) => {
        if (this.source().zoom) return this.panBy(-dx / this.place.side, -dy / this.place.side);
        const at = spot(x, y); // the whole can't be moved: then the crosshair goes along
        if (at) set({ hover: { ...at, side: this.side } });
      },
      zoom: (factor, x, y) => this.zoomBy(factor, inside(x, y)),
    });
  }

  #resized() {
    const { run } = this.source();
    const { width, height } = this.field.getBoundingClientRect();
    if (width < 40 || height < 40) return;
    const diagonal = get().view === "opening" && Boolean(run?.causal);
    this.place = layout(width, height, run?.length ?? 1, run?.letters, diagonal, areWeights(get().shows));
    this.redraw();
    this.#ask();
  }

  #changed() {
    if (this.root.hidden) return;
    const source = this.source();
    const { run } = source;
    const shape = placeOf(source).join("/");
    const wanted = run ? `${run.id}/${shape}` : "";
    if (wanted !== this.wanted) {
      // Of a text that grew the old picture is still true: it stays until the larger one comes.
      const grew = get().grown && this.shape === shape;
      this.wanted = wanted;
      this.shape = shape;
      if (!grew) {
        this.sharp = this.coarse = this.margins = null;
        this.pictures.clear();
      }
      this.#resized();
      this.sketching = !grew && (run?.length ?? 0) >= LONG;
      if (run && this.sketching) during(this.#inTurn(run, wanted));
      else if (run) {
        this.#load(); // at once: the map is what is looked at first
        this.#begin(wanted);
      }
    }
    this.redraw();
    this.#ask();
  }

  /** Of a long text first a sketch, then the map: together they would delay each other. */
  async #inTurn(/** @type {Run} */ run, /** @type {string} */ wanted) {
    for (const name of ["sharp", "coarse"]) api.end(`${name}-${this.side}`); // of what stood here before
    endOthers(this.side);
    await this.#sketch(run, wanted, FIRST);
    if (wanted !== this.wanted) return;
    this.sketching = false;
    const single = !placeOf(this.source()).includes("mean"); // of many heads a finer sketch takes as long as the map
    // The readouts that stand along it first: the map then comes with them, in one pass over the head.
    await Promise.all([this.#begin(wanted), this.#load(), single && this.#sketch(run, wanted, FINER)]);
  }

  /** Until the whole has come, some of its queries stand for it. */
  async #sketch(/** @type {Run} */ run, /** @type {string} */ wanted, /** @type {number} */ most) {
    const drawn = await sketch(run, placeOf(this.source()), most, `sketch-${this.side}`);
    const mapped = this.coarse && !this.coarse.key.startsWith("sketch/");
    if (!drawn || mapped || wanted !== this.wanted || this.current()) return;
    this.coarse = drawn;
    this.pictures.clear();
    document.dispatchEvent(new CustomEvent("sketched"));
    this.redraw();
  }

  async #begin(/** @type {string} */ wanted) {
    const margins = await readoutsOf(this.side);
    if (!margins || wanted !== this.wanted) return;
    const [entropy, received] = ["entropy", "received"].map((name) => readoutOf(name, margins.values));
    this.margins = { of: wanted, entropy, received };
    this.redraw();
  }

  /** Asks for the window at the screen's resolution, and once for the whole. */
  async #load() {
    const { run, zoom } = this.source();
    if (!run || this.root.hidden || this.sketching || this.gliding || get().wide || get().offline) return;
    const most = Math.min(FINEST, Math.round(this.place.side * (window.devicePixelRatio || 1)));
    const all = isWhole(zoom, run.length);
    /** @type {{name: "sharp"|"coarse", range: MapWindow}[]} */
    const jobs = [{ name: "sharp", range: requestFor(zoom, run.length, most) }];
    if (!all && !this.coarse?.key.startsWith(`${this.wanted}/`))
      jobs.push({ name: "coarse", range: requestFor(null, run.length, most) });
    await Promise.all(
      jobs.map((job) => this.#fetch(job.name, job.range, { id: run.id, place: placeOf(this.source()), all })),
    );
  }

  /**
   * @param {"sharp"|"coarse"} name @param {MapWindow} range @param {{id: string, place: Place, all: boolean}} of
   */
  async #fetch(name, range, { id, place, all }) {
    const { queries, keys, block } = range;
    const key = `${this.wanted}/${queries}/${keys}/${block}`;
    if (this[name]?.key === key || this.asking[name] === key) return;
    this.asking[name] = key;
    const wanted = this.wanted;
    const timer = setTimeout(() => {
      this.title.stale.hidden = false;
    }, 350);
    const data = await awaitAnswer(api.map(id, place, range, `${name}-${this.side}`));
    clearTimeout(timer);
    const newest = this.asking[name] === key;
    if (newest) this.asking[name] = "";
    if (wanted !== this.wanted || (!data && !newest)) return;
    this.title.stale.hidden = true;
    if (!data) return void document.dispatchEvent(new CustomEvent("pictures")); // what waits for one goes on
    const greatest = greatestOf(data.values);
    this[name] = { ...data, queries, keys, block, key, exact: block === 1, greatest };
    if (name === "sharp" && all) this.coarse = this.sharp;
    this.pictures.clear();
    document.dispatchEvent(new CustomEvent("pictures"));
    this.redraw();
  }

  /** Whether the picture is of what is looked at now; of a text that grew it is not, for a while. */
  current() {
    return Boolean(this.sharp?.key.startsWith(`${this.wanted}/`));
  }

  #recolour() {
    this.pictures.clear();
    this.redraw();
  }

  /** The picture of some data in the colours of now. */
  pictureOf(/** @type {Drawn} */ data, /** @type {import("./colour.js").Scale} */ scale) {
    const key = `${data.key}/${scale.kind}/${scale.high}/${inks().theme}`;
    const { queries, keys, block } = data;
    let canvas = this.pictures.get(key);
    if (!canvas) {
      const causal = this.source().run?.causal;
      // Hidden is what lies wholly above the diagonal: no query of the cell sees any of its keys.
      const hidden = causal
        ? (/** @type {number} */ i, /** @type {number} */ j) => keys[0] + j * block > queries[0] + (i + 1) * block - 1
        : undefined;
      canvas = picture(data, scale, inks().theme, hidden);
      this.pictures.set(key, canvas);
    }
    return { canvas, queries, keys, block };
  }

  /** What is drawn, of the whole and of the window: weights, or what became of them. */
  layers() {
    if (!isDifference(this.side)) return { coarse: this.coarse, sharp: this.sharp };
    const [coarse, sharp] = [columns.first.coarse, columns.first.sharp];
    return { coarse: subtract(coarse, this.coarse), sharp: subtract(sharp, this.sharp) };
  }

  /** The scale of its colours. */
  scale() {
    const { coarse, sharp } = this.layers();
    const most = (get().fit ? sharp : (coarse ?? sharp))?.greatest ?? 0;
    return isDifference(this.side) ? differenceScale(colourNow(), most) : scaleNow();
  }

  /** @returns {MapDrawing} All that the drawing needs; also what is exported. */
  drawing() {
    const { run, zoom } = this.openSourceOf();
    const { coarse, sharp } = this.layers();
    const scale = this.scale();
    const drawn = [coarse === sharp ? null : coarse, sharp];
    const pictures = drawn.filter((data) => data !== null).map((data) => this.pictureOf(data, scale));
    const [query, key] = [queryNow(this.side), keyNow(this.side)];
    return {
      place: this.place,
      inks: inks(),
      zoom: isWhole(zoom, run.length) ? null : zoom,
      length: run.length,
      causal: run.causal,
      pictures,
      numbers: sharp?.exact && this.current() ? sharp : null,
      scale,
      labels: run.labels,
      // Entropy is of weights alone.
      margins:
        this.margins?.of === this.wanted && areWeights(get().shows) && !scale.signed && !this.place.diagonal
          ? this.margins
          : null,
      shows: get().shows,
      opened: isDifference(this.side) ? null : this.opened.now(this.source(), this.place.side, zoom),
      cuts: cutsOn(this.side),
      query: query < run.length ? query : null,
      key: key != null && key < run.length ? key : null,
    };
  }

  #draw() {
    const { run } = this.source();
    markStale(this.field, this.sharp !== null && !this.current());
    if (this.root.hidden || !run) {
      prepared(this.canvas, this.place.width, this.place.height); // clears it
      return;
    }
    const { place } = this;
    this.canvas.classList.toggle("zoomed", !isWhole(this.source().zoom, run.length));
    paintMap(prepared(this.canvas, place.width, place.height), this.drawing());
    const { queries, keys, span } = this.source().zoom ?? whole(run.length);
    const seen = (/** @type {number} */ first) =>
      `${count(Math.floor(first))} to ${count(Math.min(run.length, Math.ceil(first + span)) - 1)}`;
    const [query, key] = [queryNow(this.side), keyNow(this.side)];
    const at = `query ${named(run.labels, query)}${key == null ? "" : `, key ${named(run.labels, key)}`}`;
    const what = `${isDifference(this.side) ? DIFFERENCE : MAPS[get().shows]} of ${placeName(run, this.source())}`;
    this.canvas.ariaLabel = `${what}: queries ${seen(queries)}, keys ${seen(keys)}; at ${at}. Arrows move the query and the key.`;
  }
}

/** @type {Record<SideName, MapColumn>} */
export const columns = /** @type {any} */ ({});

/**
 * One scale for what is compared: the whole pattern's, so that a weight keeps its colour while the map
 * is zoomed, unless it is to fit what is seen. A weight can then be above it, where that is of means.
 */
export function scaleNow() {
  const drawn = Object.values(columns).filter(({ root }) => !root.hidden);
  const sharp = drawn.map((column) => column.sharp).filter((data) => data !== null);
  const fitted = get().fit
    ? sharp
    : drawn.map((column) => column.coarse ?? column.sharp).filter((data) => data !== null);
  const most = (/** @type {Drawn[]} */ all) => Math.max(0, ...all.map(({ greatest }) => greatest));
  const scale = scaleOf(
    get().shows,
    colourNow(),
    most(fitted),
    fitted.every(({ exact }) => exact),
  );
  return { ...scale, exceeded: scale.high !== 1 && most(sharp) > scale.high };
}

/** The column that zoom buttons and keys mean. */
export const activeColumn = () => columns[activeSide()];

export function startMaps() {
  // Before the columns listen: they look at whether they are hidden, and how large they are.
  subscribe("run compare wide", ({ compare, wide }) => {
    byId("page").classList.toggle("empty", !runOf("first"));
    byId("map-second").hidden = compare === "off";
    byId("page").classList.toggle("comparing", compare !== "off");
    byId("page").classList.toggle("wide", wide);
  });
  columns.first = new MapColumn("first", byId("map-first"));
  columns.second = new MapColumn("second", byId("map-second"));
  document.addEventListener("pictures", () => Object.values(columns).forEach((column) => column.redraw()));
}
