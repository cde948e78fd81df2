/** The grid of many heads: one canvas of the size of its room, on which the heads that scroll into it are painted. */
import { fitted } from "./axes.js";
import { context2d, fill, outline, prepared, write } from "./canvas.js";
import { framed, lookUp, make, settled } from "./dom.js";
import { shrunk, thumbnails } from "./draw_thumbnail.js";
import { count, niceStep } from "./format.js";
import {
  MARGIN,
  NAMES,
  headNames,
  isOffIn,
  isStale,
  marksOf,
  needIn,
  pictureStyle,
  press,
  wordsOfHead,
} from "./heads_shown.js";
import { chooseHead, get, set } from "./store.js";
import { inks } from "./theme.js";
import { showFirst, thumbnailsOf } from "./thumbnails.js";

const EDGE = 3; // pixels around the cells, for the outline of a chosen one
const TOP = 14; // pixels of the heads' numbers
const LARGEST = 32; // pixels of a cell up to which a pinch goes on, before names are shown
const FRAMED = 12; // pixels from which a cell has an edge
const BUDGET = 10; // milliseconds of a frame in which pictures are made
const STALE = 0.35; // as panels.css dims what is stale
const OFF = 0.28; // as changes.css has heads that are switched off

/** A layer's pictures below each other. @typedef {{canvas: HTMLCanvasElement, rows: number, columns: number, key: string, data: Floats}} Strip */

export class HeadsCanvas {
  /** @param {SideName} side @param {HTMLElement} root */
  constructor(side, root) {
    this.side = side;
    this.root = root;
    this.canvas = make("canvas", { tabIndex: 0, role: "img" });
    this.voice = make("p", { className: "unseen", "aria-live": "polite" }); // what arrows have chosen
    this.sheet = make("div", { className: "sheet" }, this.canvas, this.voice); // as large as all heads: it scrolls
    this.ground = make("canvas"); // the pictures without what is marked on them
    root.classList.add("drawn");
    root.replaceChildren(this.sheet);
    /** @type {HeadPlace[][]} */
    this.rows = [];
    /** How far a pinch has enlarged the cells, and their size without it. */
    this.zoom = 1;
    this.base = 0;
    /** @type {OpenSource|null} */
    this.source = null;
    /** @type {Arrangement|null} */
    this.how = null;
    /** @type {HeadPlace|null} */
    this.hovered = null;
    /** @type {Map<number, Strip>} */
    this.strips = new Map();
    /** @type {Map<string, ReturnType<typeof needIn>>} */
    this.needs = new Map();
    /** @type {Effects|null} */
    this.measured = null;
    /** Layers whose cells are to be painted again. @type {Set<number>} */
    this.late = new Set();
    /** Whether all of them are. */
    this.anew = true;
    this.#soon = framed(() => this.#paint());
    this.#remark = framed(() => this.#show());
    root.addEventListener("scroll", this.#repaint);
    showFirst(side, () => this.#seen().cells.map(({ place }) => place.layer));
  }

  #repaint = () => {
    this.anew = true;
    this.#soon();
  };

  /** @type {() => void} */
  #soon;
  /** @type {() => void} */
  #remark;

  /** @param {OpenSource} source @param {HeadPlace[]} heads @param {Arrangement} how */
  arrange(source, heads, how) {
    this.source = source;
    this.base = how.cell;
    this.how = { ...how };
    if (how.small && this.zoom > 1) {
      this.how.cell = Math.min(LARGEST, how.cell * this.zoom);
      if (!how.byLayer) this.how.across = Math.max(1, Math.floor((this.root.clientWidth - 8) / this.how.cell));
    }
    const { across } = this.how;
    this.rows = how.byLayer
      ? source.run.layers.map((_, layer) => heads.filter((place) => place.layer === layer))
      : Array.from({ length: Math.ceil(heads.length / across) }, (_, row) =>
          heads.slice(row * across, (row + 1) * across),
        );
    const { left, top, right, down } = this.#measures();
    const { sheet, root } = this;
    sheet.style.width = `${Math.max(root.clientWidth, left + across * right + EDGE)}px`;
    sheet.style.height = `${top + this.rows.length * down + EDGE}px`;
    this.#say();
    this.#repaint();
  }

  /** Where cells begin, and how far apart they are. */
  #measures() {
    const { small, byLayer, cell } = /** @type {Arrangement} */ (this.how);
    const [left, top] = byLayer ? [MARGIN, TOP] : [EDGE, EDGE];
    const side = small ? cell - (cell >= 16 ? 3 : cell >= 5 ? 1 : 0) : cell; // small ones are as far apart as large
    const picture = side >= FRAMED ? side - 2 : side; // within its edge
    return { left, top, right: small ? cell : cell + 7, down: small ? cell : cell + 12 + NAMES, side, picture };
  }

  /** The cells that are in sight, where they are in the room, and its size: read once, before anything is drawn. */
  #seen() {
    const { clientWidth: width, clientHeight, scrollLeft, scrollTop } = this.root;
    const height = Math.min(clientHeight, this.sheet.clientHeight);
    /** @type {{place: HeadPlace, x: number, y: number}[]} */
    const cells = [];
    if (!this.how) return { size: { width, height }, cells };
    const { left, top, right, down } = this.#measures();
    const from = Math.max(0, Math.floor((scrollLeft - left) / right));
    const to = Math.ceil((scrollLeft + width - left) / right);
    for (let row = Math.max(0, Math.floor((scrollTop - top) / down)); row < this.rows.length; row++) {
      const y = top + row * down - scrollTop;
      if (y > height) break;
      const all = this.rows[row];
      for (let column = from; column < Math.min(to, all.length); column++)
        cells.push({ place: all[column], x: left + column * right - scrollLeft, y });
    }
    return { size: { width, height }, cells };
  }

  /** Where a head stands in the rows, or null where it is left out. */
  #spotOf(/** @type {HeadPlace} */ { layer, head }) {
    for (const [row, all] of this.rows.entries()) {
      const column = all.findIndex((place) => place.layer === layer && place.head === head);
      if (column >= 0) return { row, column };
    }
    return null;
  }

  /** The pictures of a layer have come, or all are to be painted again. */
  paint(/** @type {number|null} */ layer = null) {
    if (layer == null) return this.#repaint();
    this.late.add(layer);
    this.#soon();
  }

  /** Names, changes or effects have come. */
  fill(/** @type {OpenSource} */ source) {
    this.source = source;
    this.#say();
    this.#repaint();
  }

  mark() {
    this.#say();
    this.#remark();
  }

  hover(/** @type {HeadPlace|null} */ place) {
    this.hovered = place;
    this.canvas.title = place && this.source ? wordsOfHead(this.source, place).title : "";
    this.#remark();
  }

  /** The head that an event is on: with the keys it is the chosen one. @returns {HeadPlace|null} */
  headAt(/** @type {Event} */ event) {
    if (event.target !== this.canvas || !this.how) return null;
    if (!(event instanceof MouseEvent)) return this.#chosen();
    const { left, top, right, down } = this.#measures();
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (this.how.byLayer && (x < left || y < top)) return null;
    const column = Math.floor((x + this.root.scrollLeft - left) / right);
    const row = Math.floor((y + this.root.scrollTop - top) / down);
    return this.rows[row]?.[column] ?? null;
  }

  #chosen() {
    const { layer, head } = marksOf(this.side).active;
    return this.#spotOf({ layer, head }) && { layer, head };
  }

  /** Arrows choose the head beside, Enter and the space bar press it; whether a key did. */
  move(/** @type {KeyboardEvent} */ event) {
    if (event.target !== this.canvas) return false;
    const { layer, head } = marksOf(this.side).active;
    if (event.key === "Enter" || event.key === " ") {
      press(this.side, { layer, head });
      return true;
    }
    const by = lookUp({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }, event.key);
    if (!by) return false;
    const at = this.#spotOf({ layer, head });
    const row = this.rows[(at?.row ?? 0) + by[1]] ?? [];
    // From the end of a row to the next one where they are one order, not columns.
    const all = this.rows.flat();
    const next = !at
      ? all[0]
      : by[1]
        ? row[Math.min(at.column, row.length - 1)]
        : this.how?.byLayer
          ? this.rows[at.row][at.column + by[0]]
          : all[all.findIndex((place) => place.layer === layer && place.head === head) + by[0]];
    if (next) {
      chooseHead(next.layer, next.head, marksOf(this.side).active.side);
      this.#reveal(next);
      this.#tell();
    }
    return true;
  }

  /** Scrolls as little as is needed for a head to be seen. */
  #reveal(/** @type {HeadPlace} */ place) {
    const spot = this.#spotOf(place);
    if (!spot) return;
    const { left, top, right, down } = this.#measures();
    const { root } = this;
    const scrolled = (
      /** @type {number} */ now,
      /** @type {number} */ from,
      /** @type {number} */ size,
      /** @type {number} */ room,
      /** @type {number} */ edge,
    ) => Math.min(from - edge - EDGE, Math.max(now, from + size + EDGE - room));
    const x = left + spot.column * right;
    const y = top + spot.row * down;
    root.scrollLeft = scrolled(root.scrollLeft, x, right, root.clientWidth, this.how?.byLayer ? left : 0);
    root.scrollTop = scrolled(root.scrollTop, y, down, root.clientHeight, this.how?.byLayer ? top : 0);
  }

  closer() {
    if (get().size === "names") return;
    if ((this.how?.cell ?? 0) >= LARGEST) return set({ size: "names" });
    this.#enlarge(2);
  }

  farther() {
    if (get().size === "names") set({ size: "grid" });
    else this.#enlarge(1 / 2);
  }

  /** Makes the cells larger or smaller; what is in the middle of the room stays there. */
  #enlarge(/** @type {number} */ factor) {
    const { root, source } = this;
    if (!source || !this.how) return;
    const zoom = Math.max(1, this.zoom * factor);
    if (zoom === this.zoom) return;
    const spot = [root.scrollLeft + root.clientWidth / 2, root.scrollTop + root.clientHeight / 2];
    const [width, height] = [this.sheet.clientWidth, this.sheet.clientHeight];
    const base = { ...this.how, cell: this.base };
    this.zoom = zoom;
    this.arrange(source, this.rows.flat(), base);
    root.scrollLeft = (spot[0] / width) * this.sheet.clientWidth - root.clientWidth / 2;
    root.scrollTop = (spot[1] / height) * this.sheet.clientHeight - root.clientHeight / 2;
  }

  /** Says the head that arrows came to, once they rest: a voice can't follow a held key. */
  #tell = settled(400, () => {
    const place = this.#chosen();
    this.voice.textContent = this.source && place ? wordsOfHead(this.source, place).label : "";
  });

  /** What a voice says of the canvas: the current head. */
  #say() {
    const { source } = this;
    if (!source) return;
    const place = this.#chosen();
    const many = this.rows.reduce((sum, row) => sum + row.length, 0);
    const words = place ? wordsOfHead(source, place).label : "the chosen head is not among them";
    this.canvas.ariaLabel = `${count(many)} heads; ${words}. Arrows choose another.`;
  }

  /** The pictures of a layer at the size of the cells, or those there are; null before they have come. */
  #stripOf(/** @type {number} */ layer, /** @type {number} */ until) {
    const { source } = this;
    const data = source && thumbnailsOf(this.side, layer);
    if (!data) return null;
    const known = this.strips.get(layer);
    const style = pictureStyle(source.run);
    const side = Math.round(this.#measures().picture * (window.devicePixelRatio || 1)); // the screen's pixels
    const key = `${side} ${style.theme} ${style.kind}`;
    if (known?.key === key && known.data === data) return known;
    if (performance.now() > until) {
      this.paint(layer); // in the next frame
      return known ?? null;
    }
    const small = side < Math.max(data.rows, data.columns) ? shrunk(data, side) : data;
    const look = { ...style, exact: style.exact && small === data, shows: data.shows };
    const canvas = thumbnails(small, [...Array(data.heads).keys()], look);
    const context = context2d(canvas);
    context.globalCompositeOperation = "destination-over"; // what the mask hides is the ground
    fill(context, inks().panel, 0, 0, canvas.width, canvas.height);
    const { rows, columns } = small;
    const strip = { canvas, rows, columns, key, data };
    this.strips.set(layer, strip);
    return strip;
  }

  #needOf(/** @type {HeadPlace} */ place) {
    const { source, needs } = this;
    const { effects } = get();
    if (!source || !effects) return null;
    if (effects !== this.measured) needs.clear(); // each looks through all
    this.measured = effects;
    const name = `${place.layer}/${place.head}`;
    const known = needs.get(name) ?? needIn(source, place);
    needs.set(name, known);
    return known;
  }

  /** Paints the pictures that are in sight, and what is marked on them. */
  #paint() {
    const { source, how, root } = this;
    if (!source || !how || !root.clientWidth || !root.clientHeight) return;
    const { side, right, down } = this.#measures();
    const { size, cells } = this.#seen();
    const only = this.anew ? null : this.late;
    this.anew = false;
    this.late = new Set();
    const context = only ? context2d(this.ground) : prepared(this.ground, size.width, size.height);
    const until = performance.now() + BUDGET;
    const look = inks();
    /** @type {Map<number, Strip|null>} */
    const strips = new Map();
    for (const { place, x, y } of cells) {
      const { layer } = place;
      if (only && !only.has(layer)) continue;
      if (only) context.clearRect(x, y, right, down);
      if (!strips.has(layer)) strips.set(layer, this.#stripOf(layer, until));
      this.#paintCell(context, source, place, [x, y, side], strips.get(layer) ?? null, look);
    }
    // Large pictures of layers that are out of sight are made again when they come back.
    if (!only && side > FRAMED)
      for (const layer of this.strips.keys()) if (!strips.has(layer)) this.strips.delete(layer);
    this.#show();
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {OpenSource} source @param {HeadPlace} place
   * @param {[x: number, y: number, side: number]} box @param {Strip|null} strip @param {Inks} look
   */
  #paintCell(context, source, place, [x, y, side], strip, look) {
    const off = isOffIn(source, place);
    const edged = side >= FRAMED;
    const stale = isStale(source, place) ? STALE : 1;
    context.globalAlpha = stale * (off ? OFF : 1);
    if (!strip) fill(context, edged ? look.panel : look.line, x, y, side, side);
    else if (place.head < strip.data.heads) {
      const { canvas, rows, columns } = strip;
      context.imageSmoothingEnabled = false;
      const { picture } = this.#measures();
      const within = (side - picture) / 2;
      context.drawImage(canvas, 0, place.head * rows, columns, rows, x + within, y + within, picture, picture);
    }
    if (edged) outline(context, look.line, 1, x + 0.5, y + 0.5, side - 1, side - 1);
    context.globalAlpha = 1;
    if (off) {
      outline(context, look.changed, edged ? 1.5 : 1, x + 0.5, y + 0.5, side - 1, side - 1);
      context.beginPath();
      context.moveTo(x, y + side);
      context.lineTo(x + side, y);
      context.stroke();
    }
    const need = this.#needOf(place);
    const named = !this.how?.small;
    if (need) {
      const high = named ? 4 : Math.max(1, Math.round(side / 6));
      const wide = Math.max(1, Math.abs(need.part) * side);
      const low = named ? y + side + 4 : y + side - high;
      if (need.part > 0) outline(context, look.changed, 1, x + 0.5, low + 0.5, wide - 1, Math.max(0, high - 1));
      else fill(context, look.changed, x, low, wide, high);
    }
    if (!named) return;
    const words = wordsOfHead(source, place, need);
    context.globalAlpha = stale;
    const font = (context.font = `11px ${look.sans}`);
    const room = side + 4;
    const low = get().effects ? 5 : 0; // the bars of what the next token needs
    write(context, fitted(context, words.role, room), x, y + side + low + 14, { font, colour: look.ink });
    write(context, fitted(context, words.figure, room), x, y + side + low + 27, { font, colour: look.soft });
    context.globalAlpha = 1;
  }

  /** Shows the pictures with what is marked on them, and the numbers at the edges. */
  #show() {
    const { source, how, root, ground } = this;
    if (!source || !how || !root.clientWidth || !ground.width) return;
    const { side } = this.#measures();
    const { size, cells } = this.#seen();
    const context = prepared(this.canvas, size.width, size.height);
    const look = inks();
    context.drawImage(ground, 0, 0, size.width, size.height);
    const marks = marksOf(this.side);
    const { hovered } = this;
    /** @type {{mark: string, x: number, y: number, wide: number}[]} */
    const boxes = [];
    for (const { place, x, y } of cells) {
      const under = place.layer === hovered?.layer && place.head === hovered.head;
      const mark = (marks.active.average !== "model" && marks.of(place)) || (under ? "under" : "");
      const last = boxes.at(-1);
      // Heads of a layer's mean have one box; of the mean of all, none.
      if (mark === "chosen" && last?.mark === mark && last.y === y) last.wide = x + side - last.x;
      else if (mark) boxes.push({ mark, x, y, wide: side });
    }
    // On a ring of the ground: pictures have the colour of what is chosen.
    for (const { x, y, wide } of boxes) outline(context, look.panel, 2, x - 3, y - 3, wide + 6, side + 6);
    for (const { mark, x, y, wide } of boxes) {
      if (mark === "other") context.setLineDash([3, 2]);
      const [colour, width] = /** @type {[string, number]} */ (mark === "under" ? [look.ink, 1] : [look.accent, 2]);
      outline(context, colour, width, x - 1, y - 1, wide + 2, side + 2);
      context.setLineDash([]);
    }
    if (how.byLayer) this.#number(context, source.run, marks.active, size, look);
  }

  /**
   * The numbers of layers and heads, which stay at the edges: some of them where they have no room, and always
   * those of the head that is looked at.
   * @param {CanvasRenderingContext2D} context @param {Run} run @param {HeadPlace} chosen
   * @param {{width: number, height: number}} size @param {Inks} look
   */
  #number(context, run, chosen, { width, height }, look) {
    const { left, top, right, down, side } = this.#measures();
    const { root } = this;
    const place = this.hovered ?? chosen;
    fill(context, look.paper, 0, 0, left - 1, height);
    fill(context, look.paper, 0, 0, width, top - 1);
    const font = `11px ${look.sans}`;
    /** @type {(names: (string|number)[], at: number, pitch: number, room: number, put: (text: string, from: number, colour: string) => void) => void} */
    const along = (names, at, pitch, room, put) => {
      const step = niceStep(room / pitch);
      names.forEach((name, k) => {
        const near = k !== at && Math.abs(k - at) * pitch < room;
        if (k === at || (k % step === 0 && !near))
          put(String(name), k * pitch + side / 2, k === at ? look.accent : look.soft);
      });
    };
    const heads = headNames(run);
    along(
      run.layers.map(({ index }) => index),
      place.layer,
      down,
      13,
      (text, from, colour) => {
        const y = top + from - root.scrollTop;
        if (y >= top) write(context, text, left - 5, y, { font, colour, align: "right", baseline: "middle" });
      },
    );
    const widest = Math.max(...run.layers.map((layer) => layer.heads.length));
    along(
      Array.from({ length: widest }, (_, head) => heads[head] ?? head),
      place.head,
      right,
      22,
      (text, from, colour) => {
        const x = left + from - root.scrollLeft;
        if (x >= left) write(context, text, x, top - 4, { font, colour, align: "center" });
      },
    );
  }

  /** Takes the grid off the page. */
  end() {
    this.root.removeEventListener("scroll", this.#repaint);
    showFirst(this.side, () => []);
    this.root.classList.remove("drawn");
    this.root.replaceChildren();
  }
}
