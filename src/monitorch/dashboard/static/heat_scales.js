// Above the heat map alerts, below it the axis.

import { contextOf, cssColour, element } from "page/dom.js";
import { positionLabels } from "page/format.js";
import { printable } from "page/text.js";

/** @import { RunEvent } from "page/data.js" */
/** @import { HeatMap } from "page/heat_map.js" */

const LANE = 14;
const AXIS = 24;
const LABEL_PIXELS = 90;

export class HeatScales {
  /** @param {HeatMap} heat */
  constructor(heat) {
    this.heat = heat;
    this.lane = element("canvas", { class: "lane", "aria-hidden": "true" });
    this.name = element("div", { class: "axis-name" });
    this.ticks = element("canvas", { class: "ticks", "aria-hidden": "true" });
    this.lane.addEventListener("click", (event) => this.choose(event));
    this.lane.addEventListener("pointermove", (event) => {
      const found = this.nearest(event);
      this.lane.title = found ? printable([eventPlace(found), found.body.text].filter(Boolean).join("\n")) : "";
    });
  }

  draw() {
    this.drawLane();
    this.drawTicks();
  }

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {number} height
   */
  prepare(canvas, height) {
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(this.heat.width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = contextOf(canvas);
    context.scale(ratio, ratio);
    return context;
  }

  /** A triangle for each alert; the worst are on top. */
  drawLane() {
    const context = this.prepare(this.lane, LANE);
    for (const event of this.heat.app.visibleAlerts()) {
      const x = this.heat.xOf(event.step);
      context.fillStyle = cssColour(`--${event.severity}`);
      context.beginPath();
      context.moveTo(x - 4.5, 3);
      context.lineTo(x + 4.5, 3);
      context.lineTo(x, 11);
      context.fill();
    }
  }

  drawTicks() {
    const { heat } = this;
    const { ruler } = heat;
    this.name.textContent = this.heat.app.axisName;
    const context = this.prepare(this.ticks, AXIS);
    context.font = `11px ${cssColour("--sans")}`;
    context.fillStyle = cssColour("--muted");
    context.strokeStyle = cssColour("--line");
    const places = ruler.ticks(heat.width / LABEL_PIXELS);
    const texts = positionLabels(places, ruler.kind);
    places.forEach((place, index) => {
      const x = ruler.share(place) * heat.width;
      context.beginPath();
      context.moveTo(Math.round(x) + 0.5, 0);
      context.lineTo(Math.round(x) + 0.5, 4);
      context.stroke();
      const half = context.measureText(texts[index]).width / 2;
      context.fillText(texts[index], Math.min(Math.max(x - half, 0), heat.width - 2 * half), 16);
    });
  }

  /**
   * Alerts that belong to a layer are framed in its row.
   * @param {CanvasRenderingContext2D} context
   * @param {number} ratio
   */
  outline(context, ratio) {
    const { heat } = this;
    /** @type {Map<string, number>} */
    const rowOf = new Map();
    heat.rows.forEach((row, index) => {
      if (!row.isGroup) rowOf.set(row.name, index);
    });
    this.frame(context, ratio, rowOf.get(heat.chosen));
    for (const event of heat.app.visibleAlerts()) {
      const row = event.layer === null ? undefined : rowOf.get(event.layer);
      if (row === undefined || heat.rowHeight < 6) continue;
      const top = row * heat.rowHeight - heat.view.scrollTop;
      context.beginPath();
      context.arc(
        heat.xOf(event.step) * ratio,
        (top + heat.rowHeight / 2) * ratio,
        Math.max(Math.min(heat.rowHeight / 2, 7), 5) * ratio,
        0,
        7,
      );
      visibleStroke(context, ratio);
    }
  }

  /**
   * Draw an outline around the row of the open layer.
   * @param {CanvasRenderingContext2D} context
   * @param {number} ratio
   * @param {number | undefined} row
   */
  frame(context, ratio, row) {
    const { heat } = this;
    if (row === undefined) return;
    const top = row * heat.rowHeight - heat.view.scrollTop;
    context.beginPath();
    context.rect(
      0.5 * ratio,
      (Math.round(top) - 0.5) * ratio,
      heat.canvas.width - ratio,
      Math.max(Math.round(heat.rowHeight), 3) * ratio,
    );
    visibleStroke(context, ratio, 1);
  }

  /** @param {MouseEvent} event */
  nearest(event) {
    const x = event.clientX - this.lane.getBoundingClientRect().left;
    const near = this.heat.app
      .visibleAlerts()
      .map((alert) => ({ alert, distance: Math.abs(this.heat.xOf(alert.step) - x) }))
      .filter(({ distance }) => distance < 6);
    return near.sort((one, other) => one.distance - other.distance)[0]?.alert;
  }

  /** @param {MouseEvent} event */
  choose(event) {
    const found = this.nearest(event);
    if (found) this.heat.app.navigation.openAlert(found);
  }
}

/**
 * Draw the path light on dark, so that it is visible on any colour.
 * @param {CanvasRenderingContext2D} context
 * @param {number} ratio
 * @param {number} light  the width of the light line
 */
function visibleStroke(context, ratio, light = 1.5) {
  for (const [colour, width] of /** @type {const} */ ([
    ["rgb(0 0 0 / 45%)", light + 2],
    [cssColour("--outline"), light],
  ])) {
    context.strokeStyle = colour;
    context.lineWidth = width * ratio;
    context.stroke();
  }
}

/** @param {RunEvent} event */
function eventPlace({ kind, layer, step }) {
  return `${kind}${layer ? ` in ${layer}` : ""}, step ${step}`;
}
