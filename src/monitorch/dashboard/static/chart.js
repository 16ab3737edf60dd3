// Curves of one tag over time.

import { lookOf } from "page/chart_options.js";
import { CURVES, fade } from "page/colours.js";
import { curvesOf, hasPositive, isNumber, isSigned, rangeOf, reachesFar } from "page/curves.js";
import { arrange, cssColour, dot, download, element, saveButtons, write } from "page/dom.js";
import { saveChartCsv } from "page/exports.js";
import { number } from "page/format.js";
import { HistogramPanel } from "page/histogram_panel.js";
import { isLoss, WHOLE_RUN } from "page/names.js";
import { printable } from "page/text.js";

/** @import { App } from "page/app.js" */
/** @import { Ruler } from "page/axis.js" */
/** @import { ScaleKind } from "page/chart_options.js" */
/** @import { Broken, Column, Curves, Series, Source } from "page/curves.js" */
/** @import { ChartSpec } from "page/names.js" */

/** Height of the upper edge of a non-finite bar, in pixels. */
const EDGE = 4;
const ESTIMATE = "This number is an estimate, with this standard error.";
const SCALES = { linear: "lin", log: "log", symlog: "sym" };

/** Charts one below, or beside, the other; they are kept while their kind stays. */
export class ChartList {
  /**
   * @param {App} app
   * @param {string} name
   */
  constructor(app, name) {
    this.app = app;
    /** @type {Map<string, Chart>} */
    this.charts = new Map();
    this.root = element("div", { class: name });
    new ResizeObserver(() => this.balance()).observe(this.root);
  }

  /**
   * @param {ChartSpec[]} specs
   * @param {Source[]} sources
   * @param {string} layer
   * @param {Ruler} ruler
   */
  show(specs, sources, layer, ruler) {
    const keys = new Set(specs.map((spec) => spec.key));
    for (const [key, chart] of this.charts) {
      if (keys.has(key)) continue;
      chart.remove();
      this.charts.delete(key);
    }
    for (const spec of specs)
      if (!this.charts.has(spec.key)) this.charts.set(spec.key, new Chart(this.app, spec, ruler));
    const charts = specs.flatMap((spec) => this.charts.get(spec.key) ?? []);
    arrange(
      this.root,
      charts.map((chart) => chart.root),
    );
    charts.forEach((chart, place) => {
      chart.show(specs[place], sources, layer, ruler);
    });
    this.balance();
  }

  /** Rows of about equally many charts: four and three rather than six and one. */
  balance() {
    const shown = [...this.charts.values()].filter((chart) => !chart.root.hidden).length;
    const style = getComputedStyle(this.root);
    const [least, gap] = [style.getPropertyValue("--least"), style.columnGap].map(Number.parseFloat);
    if (!shown || !least) return;
    const most = Math.max(Math.floor((this.root.clientWidth + gap) / (least + gap)), 1);
    this.root.style.setProperty("--in-a-row", String(Math.ceil(shown / Math.ceil(shown / most))));
  }
}

export class Chart {
  /**
   * @param {App} app
   * @param {ChartSpec} spec
   * @param {Ruler} ruler
   */
  constructor(app, spec, ruler) {
    this.app = app;
    this.spec = spec;
    this.ruler = ruler;
    /** @type {Source[]} */
    this.sources = [];
    this.layer = "";
    this.isAlone = false;
    /** @type {ScaleKind[]} */
    this.kinds = ["linear"];
    /** @type {ScaleKind} */
    this.kind = "linear";
    /** @type {Curves} */
    this.curves = { tables: [], series: [], broken: [] };
    /** @type {[number[], ...Column[]]} */
    this.data = [[]];
    this.signature = "";
    /** @type {uPlot | null} */
    this.plot = null;
    /** Where a symlog scale becomes linear. */
    this.unit = 1;
    this.isFollowing = false;
    this.name = element("h3");
    this.values = element("div", { class: "values" });
    this.scale = element("button", {
      type: "button",
      class: "mini scale",
      onclick: () => this.nextScale(),
    });
    this.tools = element(
      "div",
      { class: "tools" },
      saveButtons("the chart", (kind) => this.save(kind)),
      this.scale,
    );
    this.body = element("div", { class: "chart-body" });
    this.root = element(
      "article",
      { class: "chart" },
      element("header", {}, this.name, this.tools),
      this.values,
      this.body,
    );
    this.histogram = spec.histograms === null ? null : new HistogramPanel(app);
    if (this.histogram) this.root.append(this.histogram.root);
    this.onMove = (/** @type {Event} */ event) => {
      if (/** @type {CustomEvent} */ (event).detail !== this) this.follow();
    };
    app.cursor.addEventListener("move", this.onMove);
    new ResizeObserver(() => this.resize()).observe(this.body);
  }

  /**
   * Show the numbers of a layer; `ruler` is the visible part of the axis.
   * @param {ChartSpec} spec
   * @param {Source[]} sources
   * @param {string} layer
   * @param {Ruler} ruler
   */
  show(spec, sources, layer, ruler) {
    const { state } = this.app;
    this.spec = spec;
    this.sources = sources;
    this.ruler = ruler;
    this.isAlone = layer === WHOLE_RUN;
    this.layer = layer;
    this.chooseScale();
    const title = spec.title.replaceAll("_", " ");
    write(this.name, title, title);
    this.curves = curvesOf(spec, sources, { x: state.x, weight: state.smooth, isLog: this.kind === "log" });
    const { tables } = this.curves;
    this.root.hidden = !tables.length;
    if (this.root.hidden) return;
    this.data = tables.length > 1 ? /** @type {[number[], ...Column[]]} */ (uPlot.join(tables)) : tables[0];
    const signature = JSON.stringify([
      this.curves.series,
      this.kind,
      this.app.themeKey,
      state.x,
      this.app.axisName,
      ruler.isLog,
      state.smooth > 0,
      this.name.title,
    ]);
    const isSame = signature === this.signature;
    const plot = isSame && this.plot ? this.plot : this.rebuild(signature);
    if (isSame) plot.setData(this.data, false);
    plot.batch(() => {
      plot.setScale("x", { min: ruler.low, max: ruler.high });
      plot.setScale("y", this.range());
    });
    this.follow();
  }

  /**
   * The scale that was asked for, or the usual one, which for a loss that reaches far is log. What is on both sides
   * of zero has logarithms on both sides, and zero has none.
   */
  chooseScale() {
    const { spec, sources } = this;
    const usual = isLoss(spec) && reachesFar(spec, sources) ? "log" : spec.scale;
    const asked = this.app.state.scales[spec.key] ?? usual;
    const isBoth = isSigned(spec, sources);
    this.kinds = isBoth || !hasPositive(spec, sources) ? ["linear", "symlog"] : ["linear", "log", "symlog"];
    this.kind = this.kinds.find((kind) => kind === asked) ?? (asked === "log" && isBoth ? "symlog" : "linear");
    this.scale.textContent = SCALES[this.kind];
    this.scale.setAttribute("aria-label", printable(`Scale of ${spec.title}: ${this.kind}`));
    this.scale.title = `Scale: ${this.kind}; click to change (${this.kinds.join(", ")})`;
  }

  /** @param {string} signature */
  rebuild(signature) {
    this.signature = signature;
    this.plot?.destroy();
    this.plot = new uPlot(this.options(), this.data, this.body);
    return this.plot;
  }

  range() {
    const shown = this.columns().filter((_, index) => this.curves.series[index].kind !== "smooth");
    const found = rangeOf(shown, this.app.state.robust);
    if (!found) return { min: 0, max: 1 };
    let [low, high] = found;
    const { limits } = this.spec;
    if (
      limits &&
      this.kind === "linear" &&
      low >= limits[0] &&
      high <= limits[1] &&
      high - low > 0.2 * (limits[1] - limits[0])
    )
      [low, high] = limits;
    if (this.kind === "log") return { min: low / 1.15, max: high * 1.15 };
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return { min: low - margin, max: high + margin };
  }

  columns() {
    return /** @type {Column[]} */ (this.data.slice(1));
  }

  /** @param {Pick<Series, "run" | "number">} series */
  colour({ run, number: place }) {
    return cssColour(CURVES[(this.sources.length > 1 ? run : place) % CURVES.length]);
  }

  /** @returns {uPlot.Options} */
  options() {
    const { state } = this.app;
    this.unit = this.linearPart();
    return {
      ...this.size(),
      ...lookOf(this, this.unit),
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        points: { size: 5 },
        // the point is where the number is that is written above the chart
        dataIdx: (_, series, index) =>
          series ? counting(this.curves.series[series - 1], this.columns()[series - 1], index) : index,
        bind: {
          dblclick: () => () => {
            state.set({ first: null, last: null });
            return null;
          },
        },
      },
      hooks: {
        setCursor: [(plot) => this.point(plot)],
        setSelect: [(plot) => this.zoom(plot)],
        drawAxes: [(plot) => this.markBroken(plot)],
        draw: [(plot) => this.nameAxis(plot), (plot) => this.markAlerts(plot)],
      },
    };
  }

  /** Below this a symlog scale is linear: a thousandth of the largest number. */
  linearPart() {
    const [low, high] = rangeOf(this.columns(), false) ?? [0, 0];
    return Math.max(Math.abs(low), Math.abs(high), 1e-30) / 1000;
  }

  /**
   * The name of the x axis, in the free corner between both axes.
   * @param {uPlot} plot
   */
  nameAxis({ ctx, bbox }) {
    ctx.save();
    ctx.font = `${11 * devicePixelRatio}px ${cssColour("--sans")}`;
    ctx.fillStyle = cssColour("--muted");
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.fillText(this.app.axisName, 0, bbox.top + bbox.height + 3 * devicePixelRatio);
    ctx.restore();
  }

  /**
   * Non-finite points in time as bars from top to bottom, behind all curves. A long bar is pale below its upper edge if
   * the chart has other curves.
   * @param {uPlot} plot
   */
  markBroken(plot) {
    const { bbox } = plot;
    const colour = cssColour("--nonfinite");
    const isAlone = this.curves.broken.length === 1;
    this.inside(plot, (ctx, x) => {
      for (const [start, end] of this.curves.broken.flatMap(stretches)) {
        const [left, width] = [x(start) - 1, Math.max(x(end) - x(start) + 1, 2 * devicePixelRatio)];
        const isLine = width < EDGE * devicePixelRatio;
        ctx.fillStyle = isAlone || isLine ? colour : fade(colour, 0.18);
        ctx.fillRect(left, bbox.top, width, bbox.height);
        ctx.fillStyle = colour;
        ctx.fillRect(left, bbox.top, width, EDGE * devicePixelRatio);
      }
    });
  }

  /**
   * Alerts as lines.
   * @param {uPlot} plot
   */
  markAlerts(plot) {
    this.inside(plot, (ctx, x) => {
      for (const event of this.app.visibleAlerts()) {
        if (event.layer && !this.spec.curves.some((curve) => curve.layer === event.layer)) continue;
        ctx.fillStyle = fade(cssColour(`--${event.severity}`), 0.7);
        ctx.fillRect(x(this.app.placeOf(event.step)), plot.bbox.top, devicePixelRatio, plot.bbox.height);
      }
    });
  }

  /**
   * Draw between the axes.
   * @param {uPlot} plot
   * @param {(context: CanvasRenderingContext2D, x: (place: number) => number) => void} draw
   */
  inside(plot, draw) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    draw(ctx, (place) => plot.valToPos(place, "x", true));
    ctx.restore();
  }

  /**
   * The mouse is on this chart: tell the others.
   * @param {uPlot} plot
   */
  point(plot) {
    this.writeValues(plot.cursor.idx);
    if (!this.isHere()) return;
    const { left } = plot.cursor;
    const place = left === undefined || left < 0 ? null : plot.posToVal(left, "x");
    this.app.cursor.point(place === null ? this.app.state.at : this.app.stepOf(place), this);
  }

  isHere() {
    return this.body.matches(":hover") && !this.isFollowing;
  }

  /** The mouse is elsewhere. */
  follow() {
    if (!this.plot || this.root.hidden) return;
    const { step } = this.app.cursor;
    this.isFollowing = true;
    const left = step === null ? -10 : this.plot.valToPos(this.app.placeOf(step), "x");
    this.plot.setCursor({ left, top: left < 0 ? -10 : 1 }, false);
    this.isFollowing = false;
    this.writeValues(step === null ? null : this.plot.posToIdx(left));
  }

  /** @param {uPlot} plot */
  zoom(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [first, last] = [left, left + width].map((pixels) => Math.round(this.app.stepOf(plot.posToVal(pixels, "x"))));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.app.state.set({ first, last: Math.max(last, first + 1) });
  }

  /**
   * Names and numbers of the curves, at the cursor or at the end, and the histogram there.
   * @param {number | null | undefined} index
   */
  writeValues(index) {
    this.showHistogram(index ?? null);
    const columns = this.columns();
    const shown = this.curves.series
      .map((item, place) => ({ item, column: columns[place] ?? [] }))
      .filter(({ item }) => item.kind === "raw");
    const names = [...new Set(shown.map(({ item }) => item.name))];
    this.values.replaceChildren(
      ...names.map((name) =>
        element(
          "span",
          { class: "value" },
          name && names.length > 1 ? curveName(name.replaceAll("_", " ")) : null,
          ...shown
            .filter(({ item }) => item.name === name)
            .map(({ item, column }) => this.value(item, column, index ?? null)),
        ),
      ),
    );
  }

  /** @param {number | null} index */
  showHistogram(index) {
    const { app, spec, plot, histogram } = this;
    const tag = spec.histograms;
    if (!histogram || !plot || tag === null) return;
    const lensOf = (/** @type {string} */ run) => app.heads.get(run)?.lenses.find(({ name }) => name === spec.lens);
    const runs = this.sources.map(({ name }) => name).filter((run) => lensOf(run)?.histograms.includes(tag));
    const layers = [...new Set(spec.curves.map(({ layer }) => layer))];
    const { min: low, max: high } = plot.scales.y;
    if (!runs.length || low === undefined || high === undefined) return;
    const place = this.data[0][index ?? this.data[0].length - 1];
    const step = Math.round(app.state.x === "step" ? place : app.stepOf(place));
    const isNewest = index === null && app.state.last === null;
    const stamp = isNewest ? runs.map((run) => `${lensOf(run)?.ticks}`).join() : "";
    const runAt = (/** @type {number} */ at) => this.sources.findIndex(({ name }) => name === runs[at]);
    histogram.show(
      { lens: spec.lens, tag, layers, runs, step: isNewest ? null : step, stamp },
      {
        ...{ kind: this.kind, unit: this.unit, low, high },
        colour: (run, layer) =>
          this.colour({ run: runAt(run), number: spec.curves.findIndex((curve) => curve.layer === layer) }),
        nameOf: (layer) => spec.curves.find((curve) => curve.layer === layer)?.part ?? "",
      },
    );
  }

  /**
   * @param {Series} item
   * @param {Column} column
   * @param {number | null} index
   */
  value(item, column, index) {
    const isBroken = index === null && item.endsBroken;
    const found = index === null ? column.findLast(isNumber) : column[counting(item, column, index)];
    const text = isBroken ? "NaN" : number(found);
    const value = element("b", { class: isBroken ? "broken" : null, text });
    const error = item.error ? element("span", { class: "muted", text: item.error, title: ESTIMATE }) : null;
    return element("span", { class: "pair" }, dot(this.colour(item), item.source), value, error);
  }

  nextScale() {
    const next = this.kinds[(this.kinds.indexOf(this.kind) + 1) % this.kinds.length];
    this.app.state.set({ scales: { ...this.app.state.scales, [this.spec.key]: next } });
  }

  /** @param {"PNG" | "CSV"} kind */
  save(kind) {
    const name = `${this.app.state.run} ${this.layer} ${this.spec.title}`;
    if (kind === "CSV") saveChartCsv(name, this.app.axisName, this.data, this.curves.series);
    else this.plot?.ctx.canvas.toBlob((blob) => download(`${name}.png`, blob));
  }

  resize() {
    if (this.plot && this.body.clientWidth) this.plot.setSize(this.size());
  }

  size() {
    return { width: Math.max(this.body.clientWidth, 60), height: Math.max(this.body.clientHeight, 60) };
  }

  remove() {
    this.app.cursor.removeEventListener("move", this.onMove);
    this.plot?.destroy();
    this.root.remove();
  }
}

/**
 * Where the number is that counts at a moment: where a curve has few numbers, each counts until the next. Where there
 * is none, it is the moment itself.
 * @param {Series} item
 * @param {Column} column
 * @param {number} index
 */
function counting({ isSparse }, column, index) {
  let place = index;
  while (isSparse && place >= 0 && !isNumber(column[place])) place--;
  return place < 0 ? index : place;
}

/**
 * The ranges in which a curve was not finite; a single point in time has no width.
 * @param {Broken} broken
 * @returns {[number, number][]}
 */
function stretches({ edges, counts }) {
  /** @type {[number, number][]} */
  const found = [];
  counts?.forEach((count, index) => {
    if (!count) return;
    if (counts[index - 1] > 0) found[found.length - 1][1] = edges[index];
    else found.push([edges[index], edges[index]]);
  });
  return found;
}

/** @param {string} text */
function curveName(text) {
  return element("bdi", { class: "muted", text, title: text });
}
