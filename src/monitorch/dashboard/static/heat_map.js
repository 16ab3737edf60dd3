// The model as a picture: a row for each layer, a column for each point in time.

import { Ruler } from "page/axis.js";
import { upperBound } from "page/blocks.js";
import { table } from "page/colours.js";
import { contextOf, cssColour, element } from "page/dom.js";
import { worstTone } from "page/health.js";
import { heatImage } from "page/heat_image.js";
import { fillLabels } from "page/heat_labels.js";
import { HeatPointer } from "page/heat_pointer.js";
import { HeatScales } from "page/heat_scales.js";
import { matcher } from "page/names.js";
import { brackets, build, isFolded } from "page/rows.js";

/** @import { App } from "page/app.js" */
/** @import { Tone } from "page/health.js" */
/** @import { HeatModel } from "page/heat_model.js" */
/** @import { Bracket, Row } from "page/rows.js" */

export const LABEL_HEIGHT = 13;
const [SMALLEST_ROW, READABLE_ROW, READ_ROW, TALLEST_ROW] = [1, 16, 20, 72];
const SMALLEST_GROUP = 3;
const TROUBLE = ["error", "warning", "nonfinite"];
const MARK = 3;
const BRACKET = 5;
const THINNEST_NAMED_ROW = 11;
const LOWEST_VIEW = 160;
const HATCH = 6;

export class HeatMap {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {HeatModel | null} */
    this.model = null;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Bracket[] | null} */
    this.brackets = null;
    this.isCompact = false;
    this.isReadable = false;
    this.rowHeight = READ_ROW;
    this.rowsKey = "";
    this.looks = "";
    this.chosen = "";
    this.width = 0;
    this.height = 0;
    this.askedWidth = 0;
    this.colours = new Uint32Array(256);
    this.image = element("canvas");
    this.gutter = element("div", { class: "gutter", role: "tree", "aria-label": "Layers" });
    this.canvas = element("canvas", { class: "heat-canvas", role: "img" });
    this.line = element("div", { class: "cursor-line", hidden: true });
    /** @type {CanvasPattern | null} */
    this.hatching = null;
    this.brush = element("div", { class: "brush", hidden: true });
    this.plot = element("div", { class: "plot" }, this.canvas, this.line, this.brush);
    this.stage = element("div", { class: "stage" }, this.gutter, this.plot);
    this.space = element("div", { class: "space" }, this.stage);
    this.view = element(
      "div",
      { class: "view", role: "region", tabindex: "0", "aria-label": "Heat map of layers over time" },
      this.space,
    );
    this.scales = new HeatScales(this);
    this.empty = element("p", { class: "empty", id: "layer-filter-message", hidden: true });
    this.thumb = element("div", { class: "thumb", hidden: true, "aria-hidden": "true" });
    this.rail = element("div", { class: "rail", role: "group", hidden: true, "aria-label": "Layers with problems" });
    this.root = element(
      "div",
      { class: "heat" },
      this.scales.lane,
      this.view,
      this.thumb,
      this.rail,
      this.scales.name,
      this.scales.ticks,
      this.empty,
    );
    const redraw = () => this.model && this.drawRows();
    const resize = () => this.resize();
    this.view.addEventListener("scroll", () => app.drawing.soon(redraw), { passive: true });
    new ResizeObserver(() => app.drawing.soon(resize)).observe(this.view);
    this.pointer = new HeatPointer(this);
    app.cursor.addEventListener("move", () => this.drawCursor());
  }

  resize() {
    this.layout();
    this.app.resized();
  }

  /** Columns worth asking for: two pixels each. While the panel is not shown it has the width that it had. */
  get resolution() {
    this.askedWidth = this.plot.clientWidth || this.askedWidth;
    return Math.min(Math.max(Math.floor(this.askedWidth / 2), 50), 1000);
  }

  /** The visible part of the axis. */
  get ruler() {
    const { x, logx } = this.app.state;
    return this.app.ruler ?? new Ruler([0, 1], x, logx);
  }

  /**
   * Show a model; null while there is none.
   * @param {HeatModel | null} model
   * @param {string} message
   */
  show(model, message) {
    const { sort, search, pins, closed, opened, rows, layer, map, cell, logx } = this.app.state;
    const { themeKey, healthStamp } = this.app;
    const looks = JSON.stringify([
      sort,
      search,
      pins,
      closed,
      opened,
      rows,
      layer,
      map,
      cell,
      logx,
      themeKey,
      healthStamp,
      this.ruler.low,
      this.ruler.high,
    ]);
    if (model && model === this.model && looks === this.looks) return;
    this.looks = looks;
    this.model = model;
    this.empty.hidden = Boolean(model);
    this.empty.textContent = message;
    this.root.classList.toggle("is-empty", !model);
    if (model) {
      this.layout();
      return;
    }
    this.rows = [];
    this.rowsKey = ""; // these are not the rows of any choice
  }

  /** Choose rows and their height, then draw everything. */
  layout() {
    if (!this.model || !this.view.clientHeight) return;
    const { state } = this.app;
    const room = this.view.clientHeight;
    this.chooseRows(this.model, room);
    this.chosen = this.chosenRow(this.model);
    const smallest = this.isReadable ? READABLE_ROW : SMALLEST_ROW;
    const fitting = Math.min(Math.max(room / Math.max(this.rows.length, 1), smallest), TALLEST_ROW);
    this.rowHeight = state.rows === "fit" ? fitting : READ_ROW;
    const height = this.rows.length * this.rowHeight;
    this.space.style.height = `${height}px`;
    const needed = Math.max(this.rows.length * (state.rows === "fit" ? TALLEST_ROW : READ_ROW), LOWEST_VIEW);
    this.root.style.setProperty("--needed", `${Math.ceil(needed)}px`);
    this.empty.hidden = this.rows.length > 0;
    this.empty.textContent = this.whatIsFound();
    this.stage.style.height = `${Math.min(this.view.clientHeight, Math.max(height, 1))}px`;
    this.draw(this.model);
  }

  /** What the filter finds; seen only where that is nothing, and heard also where the filter is none. */
  whatIsFound() {
    if (matcher(this.app.state.search).isValid) return "No layer matches the filter.";
    if (this.rows.length) return "The filter is not a regular expression: it is searched as plain text.";
    return "The filter is not a regular expression, and no name contains this text.";
  }

  /**
   * Cached while nothing they depend on has changed: with many layers they take time.
   * @param {HeatModel} model
   * @param {number} room
   */
  chooseRows({ layers }, room) {
    const { sort, search, pins, closed, opened, rows } = this.app.state;
    const worst = sort === "worst" ? this.app.health?.layers : null;
    const key = JSON.stringify([sort, search, pins, closed, opened, rows, room, layers, worst]);
    if (key === this.rowsKey) return;
    this.rowsKey = key;
    const place = (/** @type {string} */ name) => this.app.placeAmongWorst(name);
    const options = { layers, matches: matcher(search).test, pins, closed, opened, sort, place };
    this.rows = build({ ...options, withGroups: true });
    this.isReadable = sort === "worst" && isFolded(layers.length);
    this.isCompact = rows === "fit" && !this.isReadable && room / this.rows.length < LABEL_HEIGHT;
    if (this.isCompact) this.rows = build({ ...options, withGroups: false });
    if (this.isCompact && sort === "model" && this.rows.length * SMALLEST_ROW > room) {
      this.rows = build({ ...options, withGroups: true, most: room / SMALLEST_GROUP }); // what fits in no other way
      this.isCompact = false;
    }
    this.brackets = null;
  }

  /**
   * Draw the picture again: numbers, rows, colours or sizes have changed.
   * @param {HeatModel} model
   */
  draw(model) {
    const { map, cell, sort } = this.app.state;
    const ratio = devicePixelRatio || 1;
    this.width = this.plot.clientWidth;
    this.height = this.stage.clientHeight;
    this.canvas.width = Math.max(Math.round(this.width * ratio), 1);
    this.canvas.height = Math.max(Math.round(this.height * ratio), 1);
    this.colours = table(model.isSigned ? "signed" : map, {
      neutral: hex("--neutral"),
      nonfinite: hex("--nonfinite"),
      absent: hex("--absent"),
    });
    const image = heatImage(model, this.rows, this.ruler, this.canvas.width, this.colours, cell);
    this.image.width = image.width;
    this.image.height = image.height;
    contextOf(this.image).putImageData(image, 0, 0);
    this.hatching = model.hasZeros ? hatching() : null;
    if (this.isCompact && sort === "model" && this.rowHeight < THINNEST_NAMED_ROW)
      this.brackets ??= brackets(this.rows, this.rowHeight, BRACKET);
    this.drawRows();
    this.scales.draw();
    this.app.legend.show(model, this.colours);
    this.canvas.dataset.step = String(model.block.last[model.columns - 1] ?? "");
    this.canvas.setAttribute(
      "aria-label",
      `${this.rows.length} rows of layers over ${model.columns} points in time; the Table tab has the numbers`,
    );
  }

  /** Copy the visible rows of the picture to the screen. */
  drawRows() {
    const context = contextOf(this.canvas);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.stretch(context);
    this.scales.outline(context, devicePixelRatio || 1);
    this.drawThumb();
    this.drawRail();
    fillLabels(this, ...this.visibleRows());
    this.drawCursor();
  }

  /**
   * The picture, with its lines as tall as rows are. Zero is transparent in it, and hatched behind it.
   * @param {CanvasRenderingContext2D} context
   */
  stretch(context) {
    const ratio = devicePixelRatio || 1;
    const [first, end] = this.visibleRows();
    const gap = this.rowHeight >= 8 ? Math.max(Math.round(ratio), 1) : 0;
    const top = (/** @type {number} */ row) => Math.round((row * this.rowHeight - this.view.scrollTop) * ratio);
    const { width } = this.image;
    const draw = (/** @type {number} */ row, /** @type {number} */ lines) => {
      const [y, height] = [top(row), top(row + lines) - top(row) - gap];
      if (this.hatching && this.rows[row].members.length) context.fillRect(0, y, width, height);
      context.drawImage(this.image, 0, row, width, lines, 0, y, width, height);
    };
    context.imageSmoothingEnabled = false;
    if (this.hatching) context.fillStyle = this.hatching;
    if (!gap) draw(first, end - first);
    else for (let row = first; row < end; row++) draw(row, 1);
  }

  /** Where the view is, if there is more than it shows. */
  drawThumb() {
    const { clientHeight, scrollHeight, scrollTop } = this.view;
    this.thumb.hidden = scrollHeight <= clientHeight + 1;
    this.thumb.style.height = `${(clientHeight / scrollHeight) * clientHeight}px`;
    this.thumb.style.transform = `translateY(${(scrollTop / scrollHeight) * clientHeight}px)`;
  }

  /**
   * What is wrong with a row: with its layer, or with the worst one of its group.
   * @param {Row} row
   */
  toneOf(row) {
    const { layers } = this.model ?? { layers: [] };
    return worstTone(row.members.map((member) => this.app.health?.described[layers[member]]?.tone ?? ""));
  }

  /** Where the rows with problems are, if some are out of sight; a click goes there. */
  drawRail() {
    this.rail.hidden = this.thumb.hidden;
    if (this.rail.hidden) return;
    const room = this.view.clientHeight;
    /** @type {Map<number, { row: number, tone: Tone }>} */
    const marks = new Map();
    this.rows.forEach((row, index) => {
      const tone = this.toneOf(row);
      if (!TROUBLE.includes(tone)) return;
      const place = Math.floor(((index / this.rows.length) * room) / MARK);
      const before = marks.get(place);
      if (!before || worstTone([tone, before.tone]) !== before.tone) marks.set(place, { row: index, tone });
    });
    this.rail.replaceChildren(
      ...[...marks].map(([place, { row, tone }]) => {
        const { name } = this.rows[row];
        const mark = element("button", {
          type: "button",
          "data-tone": tone,
          title: name,
          "aria-label": `Go to ${name}`,
          tabindex: "-1",
          onclick: () => {
            this.view.scrollTop = (row + 0.5) * this.rowHeight - this.height / 2;
          },
        });
        mark.style.top = `${place * MARK}px`;
        return mark;
      }),
    );
  }

  /** @returns {[number, number]} */
  visibleRows() {
    const first = Math.max(Math.floor(this.view.scrollTop / this.rowHeight), 0);
    return [first, Math.min(Math.ceil((this.view.scrollTop + this.height) / this.rowHeight), this.rows.length)];
  }

  /**
   * From a point on the canvas to a row and a column.
   * @param {HeatModel} model
   * @param {number} x
   * @param {number} y
   */
  at(model, x, y) {
    const place = this.ruler.place(x / this.width);
    const column = Math.min(Math.max(upperBound(model.edges, place) - 1, 0), model.columns - 1);
    const row = Math.floor((y + this.view.scrollTop) / this.rowHeight);
    return { place, column, row: this.rows[row] ?? null, step: model.block.step[column] };
  }

  /**
   * From a step to pixels from the left.
   * @param {number} step
   */
  xOf(step) {
    if (!this.model) return 0;
    return this.ruler.share(this.app.placeOf(step)) * this.width;
  }

  drawCursor() {
    const { step } = this.app.cursor;
    this.line.hidden = step === null || !this.model;
    if (step !== null && this.model) this.line.style.transform = `translateX(${this.xOf(step)}px)`;
  }

  /**
   * The row of the open layer; for a statistic of parameters, the row of the first parameter.
   * @param {HeatModel} model
   */
  chosenRow({ layers }) {
    const { state, data } = this.app;
    if (!state.layer) return "";
    return data.family(state.run, state.layer).members.find((member) => layers.includes(member)) ?? "";
  }

  /**
   * Bring a layer's row into view.
   * @param {string} name
   */
  reveal(name) {
    const index = this.model?.layers.indexOf(name) ?? -1;
    const row = this.rows.findIndex((candidate) => candidate.members.includes(index));
    if (row < 0) return;
    const [top, bottom] = [row * this.rowHeight, (row + 1) * this.rowHeight];
    if (top < this.view.scrollTop) this.view.scrollTop = top;
    else if (bottom > this.view.scrollTop + this.height) this.view.scrollTop = bottom - this.height;
  }
}

/** @param {string} name */
function hex(name) {
  return cssColour(name).replace("#", "");
}

/** What is behind zero: slanted lines, as in the legend. */
function hatching() {
  const size = HATCH * (devicePixelRatio || 1);
  const tile = element("canvas", { width: String(size), height: String(size) });
  const context = contextOf(tile);
  context.fillStyle = cssColour("--zero");
  context.fillRect(0, 0, size, size);
  context.strokeStyle = cssColour("--zero-line");
  context.lineWidth = devicePixelRatio || 1;
  for (const start of [-size, 0, size]) {
    context.moveTo(start - 1, size + 1);
    context.lineTo(start + size + 1, -1);
  }
  context.stroke();
  return context.createPattern(tile, "repeat");
}
