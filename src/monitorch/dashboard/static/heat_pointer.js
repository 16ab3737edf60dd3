// Mouse on the heat map: point, click, brush.

import { NONFINITE } from "page/colours.js";
import { element } from "page/dom.js";
import { number, position } from "page/format.js";
import { shownName } from "page/names.js";

/** @import { HeatMap } from "page/heat_map.js" */
/** @import { HeatModel } from "page/heat_model.js" */
/** @import { Row } from "page/rows.js" */

const CLICK_PIXELS = 4;

export class HeatPointer {
  /** @param {HeatMap} heat */
  constructor(heat) {
    this.heat = heat;
    /** @type {number | null} */
    this.pressed = null;
    this.tip = element("div", { class: "tip", hidden: true });
    heat.root.append(this.tip);
    heat.plot.addEventListener("pointermove", (event) => this.move(event));
    heat.plot.addEventListener("pointerleave", () => this.leave());
    heat.plot.addEventListener("pointerdown", (event) => this.press(event));
    heat.plot.addEventListener("pointerup", (event) => this.release(event));
    heat.plot.addEventListener("pointercancel", () => this.cancel());
    heat.plot.addEventListener("dblclick", () => heat.app.state.set({ first: null, last: null }));
  }

  /** @param {PointerEvent} event */
  x(event) {
    const box = this.heat.plot.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, 0), box.width - 0.01);
  }

  /** @param {PointerEvent} event */
  y(event) {
    return event.clientY - this.heat.plot.getBoundingClientRect().top;
  }

  /** @param {PointerEvent} event */
  move(event) {
    const { heat } = this;
    if (!heat.model) return;
    const found = heat.at(heat.model, this.x(event), this.y(event));
    heat.app.cursor.point(found.step, heat);
    this.showTip(event, heat.model, found);
    if (this.pressed === null) return;
    const [left, right] = [this.pressed, this.x(event)].sort((one, other) => one - other);
    heat.brush.hidden = right - left < CLICK_PIXELS;
    heat.brush.style.left = `${left}px`;
    heat.brush.style.width = `${right - left}px`;
  }

  leave() {
    this.tip.hidden = true;
    if (this.pressed === null) this.heat.app.cursor.point(this.heat.app.state.at, this.heat);
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0 || !this.heat.model) return;
    this.pressed = this.x(event);
    this.heat.plot.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  release(event) {
    const { model } = this.heat;
    if (this.pressed === null || !model) return;
    const [left, right] = [this.pressed, this.x(event)].sort((one, other) => one - other);
    this.cancel();
    if (right - left < CLICK_PIXELS) this.choose(this.heat.at(model, right, this.y(event)).row);
    else
      this.heat.app.state.set({
        first: this.heat.at(model, left, 0).step,
        last: lastStep(model, this.heat.at(model, right, 0).column),
      });
  }

  cancel() {
    this.pressed = null;
    this.heat.brush.hidden = true;
  }

  /**
   * Open a layer; open or close a group.
   * @param {Row | null} row
   */
  choose(row) {
    const { state, data } = this.heat.app;
    if (!row) return;
    if (row.isGroup) state.fold(row.name, !row.isClosed);
    else state.set({ layer: data.named(state.run, row.name), tab: "layer" });
  }

  /**
   * A bracket covers layers too thin for labels: filter to them, so that there is room for names.
   * @param {string} label
   * @param {number} start
   */
  chooseBracket(label, start) {
    if (!this.heat.rows[start].isPinned)
      this.heat.app.state.set({ search: `^${label.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(\\.|$)` });
  }

  /**
   * @param {PointerEvent} event
   * @param {HeatModel} model
   * @param {ReturnType<HeatMap["at"]>} found
   */
  showTip(event, model, { row, column, place }) {
    const { heat, tip } = this;
    tip.hidden = !row;
    if (!row) return;
    const kind = heat.app.state.x;
    tip.replaceChildren(
      element("bdi", { class: "tip-name", text: shownName(row.name) }),
      element("div", {
        class: "tip-value",
        text: row.isGroup ? `${row.size} layers` : this.valueText(model, row, column),
      }),
      element("div", {
        class: "muted",
        text: `${heat.app.axisName} ${position(kind === "step" ? model.block.step[column] : place, kind)}`,
      }),
    );
    const box = heat.root.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    tip.style.left = `${x > box.width - 220 ? Math.max(x - 16 - tip.offsetWidth, 0) : x + 16}px`;
    tip.style.top = `${Math.min(y + 14, box.height - tip.offsetHeight - 4)}px`;
  }

  /**
   * The number, and how far off it may be if it is an estimate; that of a difference of two is not known.
   * @param {HeatModel} model
   * @param {Row} row
   * @param {number} column
   */
  valueText(model, row, column) {
    const { app } = this.heat;
    const error = model.isDifference ? "" : (app.data.facts(app.state.run, app.state)?.error_text ?? "");
    const isNumber = Number.isFinite(model.numbers[row.members[0] * model.columns + column]);
    return [valueText(model, row, column), isNumber ? error : ""].filter(Boolean).join(" ");
  }
}

/**
 * @param {HeatModel} model
 * @param {number} column
 */
function lastStep({ block, columns }, column) {
  return column + 1 < columns ? block.step[column + 1] - 1 : block.last[column];
}

/**
 * @param {HeatModel} model
 * @param {Row} row
 * @param {number} column
 */
function valueText(model, row, column) {
  const index = row.members[0] * model.columns + column;
  const value = model.numbers[index];
  const broken = model.block.nonfinite?.[index] ?? 0;
  const text = model.isRatio ? `×${number(2 ** value)}` : number(value);
  if (model.levels[index] === NONFINITE)
    return Number.isFinite(value) ? `${text}, ${broken} not finite` : `${text} (not finite)`;
  return Number.isNaN(value) ? "not measured" : text;
}
