// One layer: its facts and all its numbers.

import { ChartList } from "page/chart.js";
import { element, iconButton, write } from "page/dom.js";
import { compact } from "page/format.js";
import { WorstList } from "page/worst_list.js";

/** @import { App } from "page/app.js" */
/** @import { Ruler } from "page/axis.js" */
/** @import { Source } from "page/curves.js" */
/** @import { ChartSpec } from "page/names.js" */

export class LayerTab {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.name = element("bdi", { class: "mono layer-name" });
    this.facts = element("span", { class: "muted" });
    this.pin = iconButton("pin", "Pin to the top (p)", () => app.state.toggle("pins", app.state.layer));
    this.hint = element("p", { class: "empty" });
    this.worst = new WorstList(app);
    this.head = element("header", { class: "layer-head" }, element("div", {}, this.name, this.facts), this.pin);
    this.list = new ChartList(app, "charts");
    this.root = element("div", { class: "layer" }, this.hint, this.worst.root, this.head, this.list.root);
  }

  /**
   * @param {ChartSpec[]} specs
   * @param {Source[]} sources
   * @param {Ruler | null} ruler
   */
  show(specs, sources, ruler) {
    const { state, head } = this.app;
    const layer = head?.layers.find(({ name }) => name && name === state.layer);
    const isThere = layer !== undefined && ruler !== null;
    const isMissing = state.layer !== "" && head !== undefined && !layer;
    this.hint.hidden = !isMissing;
    this.worst.root.hidden = isThere;
    this.head.hidden = this.list.root.hidden = !isThere;
    if (isMissing) write(this.hint, `This run has no layer "${state.layer}".`);
    if (!isThere) {
      this.worst.show();
      return;
    }
    write(this.name, layer.name);
    const { module } = this.app.data.family(state.run, layer.name);
    const { kind, parameters } = head?.layers.find((candidate) => candidate.name === module) ?? layer;
    const facts = [kind, parameters === null ? null : `${compact(parameters)} parameters`].filter(Boolean);
    const part = layer.name.slice(module ? module.length + 1 : 0);
    // the number is that of the module: how many of them are in this part is not known
    write(this.facts, layer.name === module ? facts.join(" · ") : kind ? `${part} of ${facts.join(" with ")}` : "");
    this.pin.setAttribute("aria-pressed", String(state.pins.includes(layer.name)));
    this.list.show(specs, sources, layer.name, ruler);
  }
}
