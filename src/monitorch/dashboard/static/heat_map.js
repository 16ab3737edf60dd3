// The model as a picture: a row for each layer, a column for each moment.

import { convert, Ruler } from "page/axis.js";
import { upperBound } from "page/blocks.js";
import { table } from "page/colours.js";
import { cssColour, element } from "page/dom.js";
import { heatImage } from "page/heat_image.js";
import { fillLabels } from "page/heat_labels.js";
import { HeatPointer } from "page/heat_pointer.js";
import { HeatScales } from "page/heat_scales.js";
import { matcher } from "page/names.js";
import { brackets, build } from "page/rows.js";

export const LABEL_HEIGHT = 13;
const [SMALLEST_ROW, READ_ROW, TALLEST_ROW] = [1, 20, 72];
const BRACKET = 5;
const THINNEST_NAMED_ROW = 11;
const LOWEST_VIEW = 160;

export class HeatMap {
  constructor(app) {
    this.app = app;
    this.model = null;
    this.rows = [];
    this.tasks = new Set();
    this.rowHeight = READ_ROW;
    this.chosen = "";
    this.gutter = element("div", { class: "gutter", role: "tree", "aria-label": "Layers" });
    this.canvas = element("canvas", { class: "heat-canvas", role: "img" });
    this.line = element("div", { class: "cursor-line", hidden: true });
    this.brush = element("div", { class: "brush", hidden: true });
    this.plot = element("div", { class: "plot" }, this.canvas, this.line, this.brush);
    this.stage = element("div", { class: "stage" }, this.gutter, this.plot);
    this.space = element("div", { class: "space" }, this.stage);
    this.view = element(
      "div",
      { class: "view", tabindex: "0", "aria-label": "Heat map of layers over time" },
      this.space,
    );
    this.scales = new HeatScales(this);
    this.empty = element("p", { class: "empty", hidden: true });
    this.thumb = element("div", { class: "thumb", hidden: true, "aria-hidden": "true" });
    this.root = element(
      "div",
      { class: "heat" },
      this.scales.lane,
      this.view,
      this.thumb,
      this.scales.ticks,
      this.empty,
    );
    this.view.addEventListener("scroll", () => this.later(this.drawRows), { passive: true });
    new ResizeObserver(() => this.later(this.resize)).observe(this.view);
    this.pointer = new HeatPointer(this);
    app.cursor.addEventListener("move", () => this.drawCursor());
  }

  /** Call a method before the next frame, once. */
  later(task) {
    if (this.tasks.has(task)) return;
    this.tasks.add(task);
    requestAnimationFrame(() => {
      this.tasks.delete(task);
      task.call(this);
    });
  }

  resize() {
    this.layout();
    this.app.resized();
  }

  /** Columns worth asking for: two pixels each. */
  get resolution() {
    return Math.min(Math.max(Math.floor(this.plot.clientWidth / 2), 50), 1000);
  }

  /** The visible part of the axis. */
  get ruler() {
    const { x, logx } = this.app.state;
    return new Ruler(this.model.edges, x, logx);
  }

  /** Show a model; null while there is none. */
  show(model, message) {
    const { sort, search, pins, closed, rows, layer, map, cell, logx } = this.app.state;
    const looks = JSON.stringify([sort, search, pins, closed, rows, layer, map, cell, logx, this.app.themeKey]);
    if (model && model === this.model && looks === this.looks) return;
    this.looks = looks;
    this.model = model;
    this.empty.hidden = Boolean(model);
    this.empty.textContent = message ?? "";
    this.root.classList.toggle("is-empty", !model);
    if (model) this.layout();
  }

  /** Choose rows and their height, then draw everything. */
  layout() {
    if (!this.model || !this.view.clientHeight) return;
    const { state } = this.app;
    const options = {
      layers: this.model.layers,
      matches: matcher(state.search).test,
      pins: state.pins,
      closed: state.closed,
      sort: state.sort,
      scores: this.model.scores,
    };
    const room = this.view.clientHeight;
    this.chooseRows(options, room);
    this.chosen = this.chosenRow();
    const fitting = Math.min(Math.max(room / Math.max(this.rows.length, 1), SMALLEST_ROW), TALLEST_ROW);
    this.rowHeight = state.rows === "fit" ? fitting : READ_ROW;
    const height = this.rows.length * this.rowHeight;
    this.space.style.height = `${height}px`;
    const needed = Math.max(this.rows.length * (state.rows === "fit" ? TALLEST_ROW : READ_ROW), LOWEST_VIEW);
    this.root.style.setProperty("--needed", `${Math.ceil(needed)}px`);
    this.empty.hidden = this.rows.length > 0;
    this.empty.textContent = "No layer matches the filter.";
    this.stage.style.height = `${Math.min(this.view.clientHeight, Math.max(height, 1))}px`;
    this.draw();
  }

  /** The same rows as before while nothing they depend on has changed: with many layers they take time. */
  chooseRows(options, room) {
    const { sort, search, pins, closed, rows } = this.app.state;
    const scores = sort === "worst" ? [...options.scores] : null;
    const key = JSON.stringify([sort, search, pins, closed, rows, room, options.layers, scores]);
    if (key === this.rowsKey) return;
    this.rowsKey = key;
    this.rows = build({ ...options, withGroups: true });
    this.isCompact = rows === "fit" && room / this.rows.length < LABEL_HEIGHT;
    if (this.isCompact) this.rows = build({ ...options, withGroups: false });
    this.brackets = null;
  }

  /** Make the picture anew: numbers, rows, colours or sizes are others. */
  draw() {
    const ratio = devicePixelRatio || 1;
    this.width = this.plot.clientWidth;
    this.height = this.stage.clientHeight;
    this.canvas.width = Math.max(Math.round(this.width * ratio), 1);
    this.canvas.height = Math.max(Math.round(this.height * ratio), 1);
    this.image ??= document.createElement("canvas");
    const colours = table(this.model.isSigned ? "signed" : this.app.state.map, {
      neutral: hex("--neutral"),
      nonfinite: hex("--nonfinite"),
      absent: hex("--absent"),
    });
    this.colours = colours;
    const picture = heatImage(this.model, this.rows, this.ruler, this.canvas.width, colours, this.app.state.cell);
    this.image.width = picture.width;
    this.image.height = picture.height;
    this.image.getContext("2d").putImageData(picture, 0, 0);
    if (this.isCompact && this.app.state.sort === "model" && this.rowHeight < THINNEST_NAMED_ROW)
      this.brackets ??= brackets(this.rows, this.rowHeight, BRACKET);
    this.drawRows();
    this.scales.draw();
    this.app.legend.show(this.model, colours);
    this.canvas.dataset.step = String(this.model.block.last[this.model.columns - 1] ?? "");
    this.canvas.setAttribute(
      "aria-label",
      `${this.rows.length} rows of layers over ${this.model.columns} moments; the tab Table has the numbers`,
    );
  }

  /** Copy the visible rows of the picture to the screen. */
  drawRows() {
    const ratio = devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    const [first, end] = this.visibleRows();
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const gap = this.rowHeight >= 8 ? Math.max(Math.round(ratio), 1) : 0;
    const top = (row) => Math.round((row * this.rowHeight - this.view.scrollTop) * ratio);
    if (gap) {
      for (let row = first; row < end; row++) {
        context.drawImage(
          this.image,
          0,
          row,
          this.image.width,
          1,
          0,
          top(row),
          this.canvas.width,
          top(row + 1) - top(row) - gap,
        );
      }
    } else {
      context.drawImage(
        this.image,
        0,
        first,
        this.image.width,
        end - first,
        0,
        top(first),
        this.canvas.width,
        top(end) - top(first),
      );
    }
    this.scales.outline(context, ratio);
    this.drawThumb();
    fillLabels(this, first, end);
    this.drawCursor();
  }

  /** Where the view is, if there is more than it shows. */
  drawThumb() {
    const { clientHeight, scrollHeight, scrollTop } = this.view;
    this.thumb.hidden = scrollHeight <= clientHeight + 1;
    this.thumb.style.height = `${(clientHeight / scrollHeight) * clientHeight}px`;
    this.thumb.style.transform = `translateY(${(scrollTop / scrollHeight) * clientHeight}px)`;
  }

  visibleRows() {
    const first = Math.max(Math.floor(this.view.scrollTop / this.rowHeight), 0);
    return [first, Math.min(Math.ceil((this.view.scrollTop + this.height) / this.rowHeight), this.rows.length)];
  }

  /** From a place on the canvas to a row and a column. */
  at(x, y) {
    const place = this.ruler.place(x / this.width);
    const column = Math.min(Math.max(upperBound(this.model.edges, place) - 1, 0), this.model.columns - 1);
    const row = Math.floor((y + this.view.scrollTop) / this.rowHeight);
    return { place, column, row: this.rows[row] ?? null, step: this.model.block.step[column] };
  }

  /** From a step to pixels from the left. */
  xOf(step) {
    const { block, xs } = this.model;
    const place =
      step > block.step[block.columns - 1] ? this.model.edges[block.columns] : convert(step, block.step, xs);
    return this.ruler.share(place) * this.width;
  }

  drawCursor() {
    const { step } = this.app.cursor;
    this.line.hidden = step === null || !this.model;
    if (!this.line.hidden) this.line.style.transform = `translateX(${this.xOf(step)}px)`;
  }

  /** The row of the open layer: where a statistic is of parameters, that of the first of them. */
  chosenRow() {
    const { state, data } = this.app;
    if (!state.layer || !this.model) return "";
    return data.family(state.run, state.layer).members.find((member) => this.model.layers.includes(member)) ?? "";
  }

  /** Bring a layer's row into view. */
  reveal(name) {
    const row = this.rows.findIndex((candidate) => !candidate.isGroup && candidate.name === name);
    if (row < 0) return;
    const [top, bottom] = [row * this.rowHeight, (row + 1) * this.rowHeight];
    if (top < this.view.scrollTop) this.view.scrollTop = top;
    else if (bottom > this.view.scrollTop + this.height) this.view.scrollTop = bottom - this.height;
  }
}

function hex(name) {
  return cssColour(name).replace("#", "");
}
