// The controls above the heat map.

import { KINDS } from "page/axis.js";
import { CURVES } from "page/colours.js";
import { STRONGEST } from "page/curves.js";
import {
  Choice,
  cssColour,
  dot,
  element,
  fillSelect,
  icon,
  iconButton,
  markValid,
  renew,
  saveButtons,
  write,
} from "page/dom.js";
import { saveHeatCsv, saveHeatPng } from "page/exports.js";
import { count, duration } from "page/format.js";
import { verdictTone } from "page/health.js";
import { matcher, menu, WHOLE_RUN } from "page/names.js";
import { printable, shortNames } from "page/text.js";

/** @import { App } from "page/app.js" */

const STALE_SECONDS = 10;
const LONGEST_CHIP = 28;

/** The bar on top: which run, how it is doing, and how all panels show it. */
export class TopBar {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    const { state } = app;
    this.run = element("select", {
      "aria-label": "Run",
      class: "run-select",
      onchange: () => app.navigation.openRun(this.run.value),
    });
    this.chips = element("div", { class: "chips" });
    this.badge = new Badge(app);
    this.verdict = element("button", {
      type: "button",
      class: "verdict",
      "aria-controls": "findings",
      onclick: () => state.turn("findings"),
    });
    this.axis = new Choice("Axis", KINDS, (x) => state.set({ x }));
    this.logarithmic = element("button", {
      type: "button",
      class: "toggle",
      text: "Log",
      title: "Logarithmic x axis: shows the beginning in detail (X)",
      onclick: () => state.set({ logx: !state.logx }),
    });
    this.smooth = element("input", {
      type: "range",
      min: "0",
      max: "1",
      step: "0.01",
      "aria-label": "Smoothing",
      oninput: () => state.set({ smooth: Number(((1 - (1 - Number(this.smooth.value)) ** 2) * STRONGEST).toFixed(3)) }),
    });
    this.robust = element("button", {
      type: "button",
      class: "toggle",
      text: "Clip outliers",
      title: "Chart axes leave out the outermost 1 % of values",
      onclick: () => state.set({ robust: !state.robust }),
    });
    this.theme = iconButton("system", "Theme (t)", () => state.turn("theme"));
    this.link = iconButton("link", "Copy a link to this view (y)", () => app.notice.copyLink());
    this.root = element(
      "header",
      { class: "top" },
      element("span", { class: "brand" }, mark(), "monitorch"),
      this.run,
      this.chips,
      this.verdict,
      this.badge.root,
      element(
        "div",
        { class: "view-options" },
        this.axis.root,
        this.logarithmic,
        element("label", { class: "smooth" }, "Smooth", this.smooth),
        this.robust,
        element(
          "div",
          { class: "icons" },
          this.link,
          this.theme,
          iconButton("help", "Keys (?)", () => app.help.show()),
        ),
      ),
    );
  }

  show() {
    const { state, runs, isMissing } = this.app;
    /** @type {[string, string][]} */
    const names = runs.map(({ name, status }) => [
      name,
      isMissing && name === state.run ? `${name} (${status})` : name,
    ]);
    if (isMissing && !runs.some(({ name }) => name === state.run))
      names.unshift([state.run, `${state.run} (no such run)`]);
    fillSelect(this.run, [["", names]], state.run);
    this.run.hidden = !runs.length && !state.run;
    this.run.title = printable(state.run);
    const compared = state.compare.length ? [state.run, ...state.compare] : [];
    const short = shortNames(compared, LONGEST_CHIP);
    const chips = compared.map((name, place) => this.chip(name, short[place], place));
    renew(this.chips, chips);
    this.badge.show();
    this.showVerdict();
    this.axis.show(state.x);
    this.axis.rename("epoch", this.app.tickUnit === "tick" ? "Tick" : KINDS.epoch);
    this.logarithmic.setAttribute("aria-pressed", String(state.logx));
    if (document.activeElement !== this.smooth)
      this.smooth.value = String(1 - Math.sqrt(Math.max(1 - state.smooth / STRONGEST, 0)));
    this.robust.setAttribute("aria-pressed", String(state.robust));
    if (this.theme.dataset.shown !== state.theme) this.theme.replaceChildren(icon(state.theme));
    this.theme.dataset.shown = state.theme;
    this.theme.title = `Theme: ${state.theme} (t)`;
    this.theme.setAttribute("aria-label", this.theme.title);
  }

  /** How the run is; shows or hides the findings, if there are some. */
  showVerdict() {
    const { head, health, isMissing, isEmpty, state } = this.app;
    this.verdict.hidden = !health || isMissing || isEmpty;
    if (!head || !health) return;
    const { findings, notes = [], verdict } = health;
    const number = (findings?.length ?? 0) + notes.length;
    this.verdict.dataset.tone = verdictTone(health, head.status);
    this.verdict.disabled = !number;
    this.verdict.setAttribute("aria-expanded", String(number > 0 && state.findings === "shown"));
    const what = !findings
      ? "Nobody has looked for problems in this run"
      : number
        ? `${state.findings === "shown" ? "Hide" : "Show"} the findings (v)`
        : "No problem was found";
    write(this.verdict, verdict, what);
  }

  /**
   * The colour of a run, and a button to stop comparing it.
   * @param {string} name
   * @param {string} text
   * @param {number} place
   */
  chip(name, text, place) {
    const close = place
      ? iconButton("close", `Stop comparing with ${name}`, () => this.app.state.toggle("compare", name))
      : null;
    const colour = cssColour(CURVES[place % CURVES.length]);
    return element("span", { class: "chip", title: name }, dot(colour), element("bdi", { text }), close);
  }
}

/** Four cells of a heat map. */
function mark() {
  return element("span", { class: "mark", "aria-hidden": "true" }, ...Array.from({ length: 9 }, () => element("i")));
}

/** Whether the run is alive. */
class Badge {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.status = element("span", { class: "status", role: "status" }); // the facts beside it change every second
    this.facts = element("span", { class: "facts" });
    this.error = element("button", {
      type: "button",
      class: "link error-line",
      onclick: () => app.state.set({ tab: "alerts" }),
    });
    // before the facts, which grow and shrink every second: a button that moves is hard to hit
    this.pause = iconButton("pause", "Pause (space)", () => app.togglePause());
    this.root = element("div", { class: "badge" }, this.status, this.pause, this.facts, this.error);
    setInterval(() => this.show(), 1000);
  }

  /** What the run says of itself, and how long ago it said so. */
  show() {
    const { head, isPaused, isMissing, source } = this.app;
    this.root.hidden = !head || isMissing;
    if (!head || isMissing) return;
    const since = source.isLive ? (performance.now() - (head.at ?? 0)) / 1000 : 0;
    const status = head.status === "running" && head.age + since > STALE_SECONDS ? "stale" : head.status;
    this.root.dataset.status = isPaused ? "paused" : status;
    write(this.status, isPaused ? "paused" : status);
    const facts = [`step ${count(head.last_step)}`];
    if (head.dropped) facts.push(`${count(head.dropped)} dropped`);
    if (typeof head.overhead === "number") {
      facts.push(`${head.overhead_at_least ? "at least " : ""}${(100 * head.overhead).toFixed(1)} % overhead`);
    }
    // last, as it is what a narrow window cuts first
    if (head.tick_age !== null && source.isLive) facts.push(`${duration(head.tick_age + since)} ago`);
    this.facts.textContent = this.facts.title = facts.join(" · "); // what is cut is shown under the mouse
    const error = this.app.runError();
    this.error.hidden = !error;
    const what = error ? `${error.type}: ${error.message}` : "";
    write(this.error, what, what);
    this.pause.hidden = !source.isLive || head.status !== "running";
    this.pause.setAttribute("aria-pressed", String(isPaused));
  }
}

/** What the heat map shows, and how. */
export class HeatBar {
  /** @param {App} app */
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
    this.sort = new Choice("Order of rows", { model: "Model", worst: "Worst", name: "Name" }, (sort) =>
      state.set({ sort }),
    );
    this.rows = new Choice("Height of rows", { fit: "Fit", read: "Read" }, (rows) => state.set({ rows }));
    this.difference = element("button", {
      type: "button",
      class: "toggle",
      text: "Difference",
      onclick: () => state.set({ difference: !state.difference }),
    });
    this.root = element(
      "header",
      { class: "heat-bar" },
      this.search,
      this.statistic,
      this.difference,
      element("span", { class: "grow" }),
      this.sort.root,
      this.rows.root,
      saveButtons("the heat map", (kind) => this.save(kind)),
    );
  }

  show() {
    const { state, head } = this.app;
    if (document.activeElement !== this.search) this.search.value = state.search;
    markValid(this.search, matcher(state.search).isValid, this.app.heat.empty);
    this.statistic.hidden = !head?.lenses.some(({ name }) => name !== WHOLE_RUN);
    fillSelect(this.statistic, menu(head?.lenses ?? []), JSON.stringify([state.lens, state.statistic]));
    this.sort.show(state.sort);
    this.rows.show(state.rows);
    this.difference.hidden = !state.compare.length;
    write(this.difference, "Difference", `Show how ${state.compare[0]} differs from ${state.run} (d)`);
    this.difference.setAttribute("aria-pressed", String(state.difference));
  }

  /** @param {"PNG" | "CSV"} kind */
  save(kind) {
    const { heat, state } = this.app;
    if (!heat.model) return;
    const name = `${state.run} ${this.app.statisticTitle()}`;
    if (kind === "CSV") saveHeatCsv(name, heat.model);
    else saveHeatPng(name, heat, name);
  }
}
