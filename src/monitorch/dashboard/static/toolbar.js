// Everything above the heat map that can be chosen.

import { KINDS } from "page/axis.js";
import { CURVES } from "page/colours.js";
import { choice, cssColour, element, fillSelect, iconButton, saveButtons } from "page/dom.js";
import { saveHeatCsv, saveHeatPng } from "page/exports.js";
import { matcher, menu } from "page/names.js";
import { STRONGEST } from "page/smoothing.js";

const THEMES = ["system", "light", "dark"];

/** The bar on top: which run, how it is doing, and how all panels show it. */
export class TopBar {
  constructor(app) {
    this.app = app;
    const { state } = app;
    this.run = element("select", {
      "aria-label": "Run",
      class: "run-select",
      onchange: () => app.navigation.openRun(this.run.value),
    });
    this.chips = element("div", { class: "chips" });
    this.axis = choice("Axis", KINDS, (x) => state.set({ x }));
    this.logarithmic = element("button", {
      type: "button",
      class: "toggle",
      text: "Log",
      title: "Logarithmic axis: the beginning in detail (X)",
      onclick: () => state.set({ logx: !state.logx }),
    });
    this.smooth = element("input", {
      type: "range",
      min: "0",
      max: "1",
      step: "0.01",
      "aria-label": "Smoothing",
      oninput: () => state.set({ smooth: Number(((1 - (1 - this.smooth.value) ** 2) * STRONGEST).toFixed(3)) }),
    });
    this.robust = element("button", {
      type: "button",
      class: "toggle",
      text: "Clip outliers",
      title: "Axes of charts leave out the outermost hundredth",
      onclick: () => state.set({ robust: !state.robust }),
    });
    this.theme = iconButton("system", "Theme (t)", () => app.nextTheme());
    this.link = iconButton("link", "Copy a link to this view (y)", () => app.notice.copyLink());
    this.root = element(
      "header",
      { class: "top" },
      element("span", { class: "brand" }, mark(), "monitorch"),
      this.run,
      this.chips,
      app.badge.root,
      element(
        "div",
        { class: "view-options" },
        this.axis,
        this.logarithmic,
        element("label", { class: "smooth" }, "Smooth", this.smooth),
        this.robust,
        this.link,
        this.theme,
        iconButton("help", "Keys (?)", () => app.help.show()),
      ),
    );
  }

  show() {
    const { state, runs } = this.app;
    fillSelect(this.run, [["", runs.map(({ name }) => [name, name])]], state.run);
    this.run.hidden = !runs.length;
    this.chips.replaceChildren(
      ...(state.compare.length ? [state.run, ...state.compare].map((name, place) => this.chip(name, place)) : []),
    );
    this.axis.show(state.x);
    this.logarithmic.setAttribute("aria-pressed", String(state.logx));
    if (document.activeElement !== this.smooth)
      this.smooth.value = String(1 - Math.sqrt(Math.max(1 - state.smooth / STRONGEST, 0)));
    this.robust.setAttribute("aria-pressed", String(state.robust));
    const drawing = iconButton(
      { system: "system", light: "sun", dark: "moon" }[state.theme],
      `Theme: ${state.theme} (t)`,
      () => this.app.nextTheme(),
    );
    this.theme.replaceWith(drawing);
    this.theme = drawing;
  }

  /** The colour of a run, and a way to compare it no longer. */
  chip(name, place) {
    const dot = element("span", { class: "dot" });
    dot.style.background = cssColour(CURVES[place % CURVES.length]);
    const close = place
      ? iconButton("close", `Do not compare with ${name}`, () => this.app.state.toggle("compare", name))
      : null;
    return element("span", { class: "chip" }, dot, place ? element("bdi", { text: name }) : "this run", close);
  }
}

export function nextTheme(theme) {
  return THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
}

/** Four cells of a heat map. */
function mark() {
  return element("span", { class: "mark", "aria-hidden": "true" }, ...Array.from({ length: 9 }, () => element("i")));
}

/** What the heat map shows, and how. */
export class HeatBar {
  constructor(app) {
    this.app = app;
    const { state } = app;
    this.search = element("input", {
      type: "search",
      class: "search",
      placeholder: "Filter layers  /",
      "aria-label": "Filter layers by regular expression",
      spellcheck: "false",
      oninput: () => state.set({ search: this.search.value }),
    });
    this.statistic = element("select", {
      class: "statistic",
      "aria-label": "Statistic",
      onchange: () => {
        const [lens, statistic] = JSON.parse(this.statistic.value);
        state.set({ lens, statistic });
      },
    });
    this.sort = choice("Order of rows", { model: "Model", worst: "Worst", name: "Name" }, (sort) =>
      state.set({ sort }),
    );
    this.rows = choice("Height of rows", { fit: "Fit", read: "Read" }, (rows) => state.set({ rows }));
    this.difference = element("button", {
      type: "button",
      class: "toggle",
      text: "Difference",
      title: "Show how the other run differs (d)",
      onclick: () => state.set({ difference: !state.difference }),
    });
    this.root = element(
      "header",
      { class: "heat-bar" },
      this.search,
      this.statistic,
      this.difference,
      element("span", { class: "grow" }),
      this.sort,
      this.rows,
      saveButtons("the heat map", (kind) => this.save(kind)),
    );
  }

  show() {
    const { state, head } = this.app;
    if (document.activeElement !== this.search) this.search.value = state.search;
    this.search.classList.toggle("is-invalid", !matcher(state.search).isValid);
    fillSelect(this.statistic, menu(head?.lenses ?? []), JSON.stringify([state.lens, state.statistic]));
    for (const name of ["sort", "rows"]) this[name].show(state[name]);
    this.difference.hidden = !state.compare.length;
    this.difference.setAttribute("aria-pressed", String(state.difference));
  }

  save(kind) {
    const { heat, state } = this.app;
    if (!heat.model) return;
    const name = `${state.run} ${this.app.statisticTitle()}`;
    if (kind === "CSV") saveHeatCsv(name, heat.model);
    else saveHeatPng(name, heat, name);
  }
}
