// The worst layers, and why: what the panel beside the heat map shows until one is chosen.

import { breakable, element, renew, write } from "page/dom.js";
import { count, number } from "page/format.js";
import { kindsOf, layerText, matcher, moduleOf, title } from "page/names.js";

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
    const { layers, total } = this.layers();
    this.empty.hidden = !health || layers.length > 0;
    write(this.empty, this.whyEmpty(total));
    const shown = JSON.stringify([layers, total, state.run]);
    if (shown === this.shown) return;
    this.shown = shown;
    const isCalm = layers.every(({ tone }) => !tone);
    const what = isCalm ? "Largest numbers; nothing stands out" : "Worst layers";
    const part = layers.length < total ? element("span", { text: `${layers.length} of ${count(total)}` }) : "";
    this.head.replaceChildren(...(layers.length ? [what, part] : []));
    const items = layers.map((one) => element("li", {}, this.button(one)));
    renew(this.list, items);
  }

  /** @param {number} total */
  whyEmpty(total) {
    if (total) return "No layer that matches the filter is among the worst.";
    return this.app.health?.layers.length ? "No layer matches the filter." : "No layer has numbers.";
  }

  /**
   * The worst that match the filter, and how many match in all. A module and its parameters are one entry: what is wrong
   * with one is said of all.
   */
  layers() {
    const { health, head, state } = this.app;
    const matches = matcher(state.search).test;
    const kinds = kindsOf(head?.layers ?? []);
    /** @type {Set<string>} */
    const modules = new Set();
    const layers = [];
    for (const name of health?.layers ?? []) {
      const module = moduleOf(kinds, name);
      if (modules.has(module) || !matches(name)) continue;
      modules.add(module);
      const facts = health?.described[name]; // the server describes the worst only
      if (facts && layers.length < MOST) layers.push({ name, ...facts });
    }
    return { layers, total: modules.size };
  }

  /** @param {ReturnType<WorstList["layers"]>["layers"][number]} layer */
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
