// The numbers of the heat map as a table.

import { breakable, element, renew, write } from "page/dom.js";
import { count, number } from "page/format.js";
import { matcher, shownName } from "page/names.js";

/** @import { App } from "page/app.js" */
/** @import { Block } from "page/blocks.js" */
/** @import { HeatModel } from "page/heat_model.js" */

const MOST = 1000;

export class TableTab {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.caption = element("caption");
    this.body = element("tbody");
    const heads = ["layer", "newest", "smallest", "mean", "largest", "not finite"];
    this.table = element(
      "table",
      {},
      this.caption,
      element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col", text })))),
      this.body,
    );
    this.empty = element("p", { class: "empty", text: "No layer has numbers." });
    this.root = element("div", { class: "table-tab" }, this.table, this.empty);
  }

  /**
   * `total` is a block with one column for the whole span.
   * @param {Block | undefined} total
   * @param {HeatModel | null} model
   */
  show(total, model) {
    this.empty.hidden = model !== null;
    this.table.hidden = !model;
    if (!total || !model) return;
    const { state } = this.app;
    const matches = matcher(state.search).test;
    const error = this.app.data.facts(state.run, state)?.error_text;
    const what = [this.app.statisticTitle(), error].filter(Boolean).join(" ");
    write(this.caption, `${what}, steps ${count(total.step[0])} to ${count(total.last[0])}`);
    const rows = total.layers
      .map((name, row) => ({ name, row, place: this.app.placeAmongWorst(name) }))
      .filter(({ name }) => matches(name));
    if (state.sort === "worst") rows.sort((one, other) => one.place - other.place);
    if (state.sort === "name") rows.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
    const lines = rows.slice(0, MOST).map(({ name, row }) => this.line(name, row, total, model));
    renew(this.body, lines);
  }

  /**
   * @param {string} name
   * @param {number} row
   * @param {Block} total
   * @param {HeatModel} model
   */
  line(name, row, total, model) {
    const newest = model.layers.indexOf(name);
    const broken = total.nonfinite?.[row] ?? 0;
    const cells = [
      newest < 0 ? null : (model.block[this.app.state.cell]?.[(newest + 1) * model.columns - 1] ?? null),
      total.minimum[row],
      total.mean[row],
      total.maximum[row],
    ];
    const { state, data } = this.app;
    const layer = data.named(state.run, name);
    const open = element(
      "button",
      { type: "button", class: "link", onclick: () => state.set({ layer, tab: "layer" }) },
      breakable(shownName(name)),
    );
    return element(
      "tr",
      { class: broken ? "is-broken" : null },
      element("th", { scope: "row" }, open),
      ...cells.map((value) => element("td", { text: number(value) })),
      element("td", { text: broken ? count(broken) : "" }),
    );
  }
}
