// Curves of one tag over time.

import { fade, lookOf } from "page/chart_options.js";
import { CURVES } from "page/colours.js";
import { curvesOf, isSigned, rangeOf } from "page/curves.js";
import { cssColour, download, element, saveButtons } from "page/dom.js";
import { saveChartCsv } from "page/exports.js";
import { number } from "page/format.js";
import { WHOLE_RUN } from "page/names.js";

const SCALES = { linear: "lin", log: "log", symlog: "sym" };

export class Chart {
  constructor(app) {
    this.app = app;
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
    this.onMove = (event) => {
      if (event.detail !== this) this.follow();
    };
    app.cursor.addEventListener("move", this.onMove);
    new ResizeObserver(() => this.resize()).observe(this.body);
  }

  /** Show what sources know of a layer; `ruler` is the visible part of the axis. */
  show(spec, sources, layer, ruler) {
    const { state } = this.app;
    this.spec = spec;
    this.sources = sources;
    this.ruler = ruler;
    this.isAlone = layer === WHOLE_RUN;
    this.layer = layer;
    this.chooseScale();
    this.name.textContent = this.name.title = spec.title.replaceAll("_", " ");
    this.curves = curvesOf(spec, sources, { x: state.x, weight: state.smooth, isLog: this.kind === "log" });
    this.root.hidden = !this.curves.tables.length;
    if (this.root.hidden) return;
    this.data = this.curves.tables.length > 1 ? globalThis.uPlot.join(this.curves.tables) : this.curves.tables[0];
    const signature = JSON.stringify([
      this.curves.series,
      this.kind,
      this.app.themeKey,
      state.x,
      ruler.isLog,
      state.smooth > 0,
    ]);
    if (signature !== this.signature || !this.plot) this.rebuild(signature);
    else this.plot.setData(this.data, false);
    this.plot.batch(() => {
      this.plot.setScale("x", { min: ruler.low, max: ruler.high });
      this.plot.setScale("y", this.range());
    });
    this.follow();
  }

  /** The scale that was asked for; what is on both sides of zero has logarithms on both sides. */
  chooseScale() {
    const { spec, sources } = this;
    const asked = this.app.state.scales[spec.key] ?? spec.scale;
    this.kinds = isSigned(spec, sources) ? ["linear", "symlog"] : ["linear", "log", "symlog"];
    this.kind = this.kinds.includes(asked) ? asked : asked === "log" ? "symlog" : "linear";
    this.scale.textContent = SCALES[this.kind];
    this.scale.setAttribute("aria-label", `Scale of ${spec.title}: ${this.kind}`);
    this.scale.title = `Scale: ${this.kind}; a click changes it (${this.kinds.join(", ")})`;
  }

  rebuild(signature) {
    this.signature = signature;
    this.plot?.destroy();
    this.plot = new globalThis.uPlot(this.options(), this.data, this.body);
  }

  range() {
    const shown = this.data.slice(1).filter((_, index) => this.curves.series[index].kind !== "smooth");
    let [low, high] = rangeOf(shown, this.app.state.robust);
    if (low === null) return { min: 0, max: 1 };
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

  colour({ run, number: place }) {
    return cssColour(CURVES[(this.sources.length > 1 ? run : place) % CURVES.length]);
  }

  options() {
    const { state } = this.app;
    return {
      ...this.size(),
      ...lookOf(this, this.linearPart()),
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        points: { size: 5 },
        bind: { dblclick: () => () => state.set({ first: null, last: null }) },
      },
      hooks: {
        setCursor: [(plot) => this.point(plot)],
        setSelect: [(plot) => this.zoom(plot)],
        draw: [(plot) => this.mark(plot)],
      },
    };
  }

  /** Below this a symlog scale is linear: a thousandth of the largest number. */
  linearPart() {
    const [low, high] = rangeOf(this.data.slice(1), false);
    return Math.max(Math.abs(low ?? 0), Math.abs(high ?? 0), 1e-30) / 1000;
  }

  /** Moments that were not finite, and alerts, as lines from top to bottom. */
  mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const { xs, counts } of this.curves.broken) {
      if (!counts) continue;
      ctx.fillStyle = cssColour("--nonfinite");
      counts.forEach((count, index) => {
        if (count > 0)
          ctx.fillRect(plot.valToPos(xs[index], "x", true) - 1, bbox.top, 2 * devicePixelRatio, bbox.height);
      });
    }
    for (const event of this.app.visibleAlerts()) {
      if (event.layer && !this.spec.curves.some((curve) => curve.layer === event.layer)) continue;
      ctx.fillStyle = fade(cssColour(`--${event.severity}`), 0.7);
      ctx.fillRect(plot.valToPos(this.app.placeOf(event.step), "x", true), bbox.top, devicePixelRatio, bbox.height);
    }
    ctx.restore();
  }

  /** The mouse is on this chart: tell the others. */
  point(plot) {
    this.writeValues(plot.cursor.idx);
    if (!this.isHere()) return;
    const place = plot.cursor.left < 0 ? null : plot.posToVal(plot.cursor.left, "x");
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

  zoom(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [first, last] = [left, left + width].map((pixels) => Math.round(this.app.stepOf(plot.posToVal(pixels, "x"))));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.app.state.set({ first, last: Math.max(last, first + 1) });
  }

  /** Names and numbers of the curves, at the cursor or at the end. */
  writeValues(index) {
    const shown = this.curves.series
      .map((item, place) => [item, this.data[place + 1]])
      .filter(([item]) => item.kind === "raw");
    const names = [...new Set(shown.map(([item]) => item.name))];
    this.values.replaceChildren(
      ...names.map((name) =>
        element(
          "span",
          { class: "value" },
          name && names.length > 1 ? element("bdi", { class: "muted", text: name.replaceAll("_", " ") }) : null,
          ...shown.filter(([item]) => item.name === name).flatMap(([item, column]) => this.value(item, column, index)),
        ),
      ),
    );
  }

  value(item, column, index) {
    const atEnd = index === null || index === undefined;
    const found = atEnd ? column.findLast((candidate) => candidate !== null && candidate !== undefined) : column[index];
    const dot = element("span", { class: "dot", title: item.source });
    dot.style.background = this.colour(item);
    if (atEnd && item.endsBroken) return [dot, element("b", { class: "broken", text: "NaN" })];
    return [dot, element("b", { text: found === null || found === undefined ? "–" : number(found) })];
  }

  nextScale() {
    const next = this.kinds[(this.kinds.indexOf(this.kind) + 1) % this.kinds.length];
    this.app.state.set({ scales: { ...this.app.state.scales, [this.spec.key]: next } });
  }

  save(kind) {
    const name = `${this.app.state.run} ${this.layer} ${this.spec.title}`;
    if (kind === "CSV") saveChartCsv(name, this.app.state.x, this.data, this.curves.series);
    else this.plot.ctx.canvas.toBlob((blob) => download(`${name}.png`, blob));
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
