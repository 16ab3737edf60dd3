// What the colours of the heat map mean.

import { css, LEVELS } from "page/colours.js";
import { choice, element } from "page/dom.js";
import { number } from "page/format.js";

export class Legend {
  constructor(app) {
    this.app = app;
    this.low = element("span");
    this.high = element("span");
    this.bar = element("canvas", { width: LEVELS, height: 1, class: "legend-bar", "aria-hidden": "true" });
    this.map = element(
      "button",
      {
        type: "button",
        title: "Viridis or cividis (m)",
        "aria-label": "Another table of colours",
        onclick: () => app.state.set({ map: app.state.map === "viridis" ? "cividis" : "viridis" }),
      },
      this.bar,
    );
    this.colour = choice("Colours", { auto: "Auto", linear: "Lin", log: "Log" }, (colour) => app.state.set({ colour }));
    this.cell = choice("A cell shows", { maximum: "Max", mean: "Mean", minimum: "Min" }, (cell) =>
      app.state.set({ cell }),
    );
    this.what = element("span", { class: "muted" });
    this.zoomed = element("button", {
      type: "button",
      class: "link",
      text: "reset zoom",
      onclick: () => app.state.set({ first: null, last: null }),
    });
    const swatch = element("span", { class: "swatch swatch-nonfinite" });
    this.root = element(
      "footer",
      { class: "legend" },
      this.low,
      this.map,
      this.high,
      this.what,
      element("span", { class: "swatch-text" }, swatch, "NaN or Inf"),
      this.zoomed,
      element("span", { class: "grow" }),
      this.colour,
      this.cell,
    );
  }

  show(model, colours) {
    const context = this.bar.getContext("2d");
    for (let level = 0; level < LEVELS; level++) {
      context.fillStyle = css(colours[level]);
      context.fillRect(level, 0, 1, 1);
    }
    this.colour.show(this.app.state.colour);
    this.cell.show(this.app.state.cell);
    const text = (value) => (model.isRatio ? `×${number(2 ** value)}` : number(value));
    this.low.textContent = text(model.low);
    this.high.textContent = text(model.high);
    const { state } = this.app;
    this.what.textContent = this.scaleText(model);
    this.zoomed.hidden = state.first === null && state.last === null;
  }

  scaleText({ isRatio, isLog, unit }) {
    if (isRatio) return "other run / this run";
    if (this.app.other) return "other run − this run";
    if (isLog) return "log";
    return unit ? "symlog" : "linear";
  }
}
