// Mouse on the heat map: point, click, brush.

import { NONFINITE } from "page/colours.js";
import { element } from "page/dom.js";
import { number, position } from "page/format.js";

const CLICK_PIXELS = 4;

export class HeatPointer {
  constructor(heat) {
    this.heat = heat;
    this.tip = element("div", { class: "tip", hidden: true });
    heat.root.append(this.tip);
    heat.plot.addEventListener("pointermove", (event) => this.move(event));
    heat.plot.addEventListener("pointerleave", () => this.leave());
    heat.plot.addEventListener("pointerdown", (event) => this.press(event));
    heat.plot.addEventListener("pointerup", (event) => this.release(event));
    heat.plot.addEventListener("pointercancel", () => this.cancel());
    heat.plot.addEventListener("dblclick", () => heat.app.state.set({ first: null, last: null }));
  }

  x(event) {
    const box = this.heat.plot.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, 0), box.width - 0.01);
  }

  y(event) {
    return event.clientY - this.heat.plot.getBoundingClientRect().top;
  }

  move(event) {
    const { heat } = this;
    if (!heat.model) return;
    const found = heat.at(this.x(event), this.y(event));
    heat.app.cursor.point(found.step, heat);
    this.showTip(event, found);
    if (this.pressed === undefined) return;
    const [left, right] = [this.pressed, this.x(event)].sort((one, other) => one - other);
    heat.brush.hidden = right - left < CLICK_PIXELS;
    heat.brush.style.left = `${left}px`;
    heat.brush.style.width = `${right - left}px`;
  }

  leave() {
    this.tip.hidden = true;
    if (this.pressed === undefined) this.heat.app.cursor.point(this.heat.app.state.at, this.heat);
  }

  press(event) {
    if (event.button !== 0 || !this.heat.model) return;
    this.pressed = this.x(event);
    this.heat.plot.setPointerCapture(event.pointerId);
  }

  release(event) {
    if (this.pressed === undefined) return;
    const [left, right] = [this.pressed, this.x(event)].sort((one, other) => one - other);
    this.cancel();
    if (right - left < CLICK_PIXELS) this.choose(this.heat.at(right, this.y(event)).row);
    else
      this.heat.app.state.set({
        first: this.heat.at(left, 0).step,
        last: this.lastStep(this.heat.at(right, 0).column),
      });
  }

  lastStep(column) {
    const { block, columns } = this.heat.model;
    return column + 1 < columns ? block.step[column + 1] - 1 : block.last[column];
  }

  cancel() {
    this.pressed = undefined;
    this.heat.brush.hidden = true;
  }

  /** Open a layer; open or close a group. */
  choose(row) {
    const { state } = this.heat.app;
    if (!row) return;
    if (row.isGroup) state.toggle("closed", row.name);
    else state.set({ layer: row.name, tab: "layer" });
  }

  /** A bracket stands for layers too thin to name: close them up, so that there is room for names. */
  chooseBracket(label, start) {
    if (!this.heat.rows[start].isPinned)
      this.heat.app.state.set({ search: `^${label.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(\\.|$)` });
  }

  showTip(event, { row, column, place }) {
    const { heat, tip } = this;
    tip.hidden = !row;
    if (!row) return;
    const kind = heat.app.state.x;
    tip.replaceChildren(
      element("bdi", { class: "tip-name", text: row.name }),
      element("div", { class: "tip-value", text: row.isGroup ? `${row.size} layers` : this.valueText(row, column) }),
      element("div", {
        class: "muted",
        text: `${kind} ${position(kind === "step" ? heat.model.block.step[column] : place, kind)}`,
      }),
    );
    const box = heat.root.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    tip.style.left = `${x > box.width - 220 ? x - 16 - tip.offsetWidth : x + 16}px`;
    tip.style.top = `${Math.min(y + 14, box.height - tip.offsetHeight - 4)}px`;
  }

  valueText(row, column) {
    const { model } = this.heat;
    const index = row.members[0] * model.columns + column;
    const broken = model.block.nonfinite?.[index] ?? 0;
    const text = model.isRatio ? `×${number(2 ** model.numbers[index])}` : number(model.numbers[index]);
    if (model.levels[index] === NONFINITE) {
      return Number.isFinite(model.numbers[index])
        ? `${text}, ${broken} not finite`
        : `${text === "NaN" ? "NaN" : text} (not finite)`;
    }
    return Number.isNaN(model.numbers[index]) ? "not measured" : text;
  }
}
