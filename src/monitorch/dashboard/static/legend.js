// What the colours of the heat map mean.

import { css, LEVELS } from "page/colours.js";
import { Choice, contextOf, element } from "page/dom.js";
import { number, tickLabels } from "page/format.js";
import { shortNames } from "page/text.js";

/** @import { App } from "page/app.js" */
/** @import { HeatModel } from "page/heat_model.js" */

const LONGEST_NAME = 32;

export class Legend {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.low = element("span");
    this.high = element("span");
    this.bar = element("canvas", {
      width: String(LEVELS),
      height: "1",
      class: "legend-bar",
      "aria-hidden": "true",
    });
    this.map = element(
      "button",
      {
        type: "button",
        title: "Viridis or cividis (m)",
        "aria-label": "Change the colour map",
        onclick: () => app.state.turn("map"),
      },
      this.bar,
    );
    this.colour = new Choice("Colours", { auto: "Auto", linear: "Lin", log: "Log" }, (colour) =>
      app.state.set({ colour }),
    );
    this.cell = new Choice("A cell shows", { maximum: "Max", mean: "Mean", minimum: "Min" }, (cell) =>
      app.state.set({ cell }),
    );
    this.what = element("span", { class: "muted" });
    this.zoomed = element("button", {
      type: "button",
      class: "link",
      text: "reset zoom",
      onclick: () => app.state.set({ first: null, last: null }),
    });
    this.zero = swatch("zero", "Zero");
    this.root = element(
      "footer",
      { class: "legend" },
      this.low,
      this.map,
      this.high,
      this.what,
      this.zero,
      swatch("nonfinite", "NaN or Inf"),
      this.zoomed,
      element("span", { class: "grow" }),
      this.colour.root,
      this.cell.root,
    );
  }

  /**
   * @param {HeatModel} model
   * @param {Uint32Array} colours
   */
  show(model, colours) {
    const context = contextOf(this.bar);
    for (let level = 0; level < LEVELS; level++) {
      context.fillStyle = css(colours[level]);
      context.fillRect(level, 0, 1, 1);
    }
    const { state } = this.app;
    this.colour.show(state.colour);
    this.cell.show(state.cell);
    const ends = [model.low, model.high];
    const texts = number(ends[0]) === number(ends[1]) ? tickLabels(ends) : ends.map(number);
    [this.low.textContent, this.high.textContent] = model.isRatio ? ends.map((end) => `×${number(2 ** end)}`) : texts;
    this.what.replaceChildren(...this.scaleText(model));
    this.zero.hidden = model.isDifference;
    this.zoomed.hidden = state.first === null && state.last === null;
  }

  /** @param {HeatModel} model */
  scaleText({ isRatio, isDifference, isLog, unit }) {
    const { run, compare } = this.app.state;
    if (isDifference) {
      const names = [compare[0], run];
      const [other, own] = shortNames(names, LONGEST_NAME).map((text, place) =>
        element("bdi", { text, title: names[place] }),
      );
      return [other, isRatio ? " / " : " − ", own];
    }
    return [isLog ? "log" : unit ? "symlog" : "linear"];
  }
}

/**
 * @param {string} kind
 * @param {string} text
 */
function swatch(kind, text) {
  return element("span", { class: "swatch-text" }, element("span", { class: `swatch swatch-${kind}` }), text);
}
