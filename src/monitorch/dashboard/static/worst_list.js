// The worst layers, and why: what the panel beside the heat map shows until one is chosen.

import { breakable, element, renew, write } from "page/dom.js";
import { number } from "page/format.js";
import { layerText, matcher, title } from "page/names.js";

/** @import { App } from "page/app.js" */

const MOST = 15;

export class WorstList {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.shown = "";
    this.head = element("h2");
    this.list = element("ol");
    this.empty = element("p", { class: "empty" });
    this.root = element("div", { class: "worst" }, this.head, this.list, this.empty);
  }

  show() {
    const { health, state } = this.app;
    const layers = this.layers();
    this.empty.hidden = !health || layers.length > 0;
    write(this.empty, health?.layers.length ? "No layer matches the filter." : "No layer has numbers.");
    const shown = JSON.stringify([layers, state.run]);
    if (shown === this.shown) return;
    this.shown = shown;
    const isCalm = layers.every(({ tone }) => !tone);
    this.head.textContent = !layers.length ? "" : isCalm ? "Largest numbers; nothing stands out" : "Worst layers";
    const items = layers.map((one) => element("li", {}, this.button(one)));
    renew(this.list, items);
  }

  /** A module and its parameters are one entry: what is wrong with one is said of all. */
  layers() {
    const { health, data, state } = this.app;
    const matches = matcher(state.search).test;
    /** @type {Set<string>} */
    const modules = new Set();
    const found = [];
    for (const name of health?.layers ?? []) {
      const facts = health?.described[name];
      const { module } = data.family(state.run, name);
      if (!facts || modules.has(module) || !matches(name)) continue;
      modules.add(module);
      found.push({ name, ...facts });
      if (found.length === MOST) break;
    }
    return found;
  }

  /** @param {ReturnType<WorstList["layers"]>[number]} layer */
  button({ name, tone, reason, lens, statistic, value }) {
    const { data, state, navigation } = this.app;
    const facts = data.facts(state.run, { lens, statistic });
    return element(
      "button",
      {
        type: "button",
        class: "worst-layer",
        "data-key": name,
        "data-tone": tone,
        onclick: () => navigation.openLayer(data.named(state.run, name), { lens, statistic }),
      },
      element("span", { class: "dot" }),
      element("bdi", { class: "mono" }, breakable(layerText(name))),
      element(
        "span",
        { class: "worst-facts" },
        reason ? element("span", { class: "worst-reason", text: reason }) : null,
        element("span", { class: "muted", text: `${title(facts)} ${number(Number(value))}` }),
      ),
    );
  }
}
