// Moves between layers, runs, statistics and points in time.

import { menu } from "page/names.js";

/** @import { App } from "page/app.js" */
/** @import { RunEvent } from "page/data.js" */

export class Navigation {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
  }

  /**
   * Go to the layer and step of an alert.
   * @param {RunEvent} event
   */
  openAlert(event) {
    const { first, last } = this.app.state;
    const isOutside = (first !== null && event.step < first) || (last !== null && event.step > last);
    this.app.state.set({
      layer: event.layer ?? this.app.state.layer,
      tab: "layer",
      at: event.step,
      ...(isOutside ? { first: null, last: null } : {}),
    });
    this.app.cursor.point(event.step, null);
    if (event.layer) this.app.heat.reveal(event.layer);
  }

  /**
   * Show a run; if it was a compared one, it swaps places with the shown run.
   * @param {string} run
   * @param {import("page/state.js").Changes} changes
   */
  openRun(run, changes = {}) {
    const compare = this.app.state.compare.includes(run)
      ? this.app.state.compare.map((name) => (name === run ? this.app.state.run : name))
      : this.app.state.compare;
    this.app.state.set({ run, compare, first: null, last: null, at: null, ...changes });
  }

  /** @param {number} step */
  nextLayer(step) {
    const rows = this.app.heat.rows.filter((row) => !row.isGroup);
    if (!rows.length) return;
    const place = rows.findIndex((row) => row.name === this.app.heat.chosen);
    const next = place < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(place + step, 0), rows.length - 1);
    this.app.state.adjust({ layer: rows[next].name });
    this.app.heat.reveal(rows[next].name);
  }

  /** @param {number} step */
  nextStatistic(step) {
    const all = menu(this.app.head?.lenses ?? []).flatMap(([, options]) => options.map(([value]) => value));
    const place = all.indexOf(JSON.stringify([this.app.state.lens, this.app.state.statistic]));
    if (!all.length) return;
    const [lens, statistic] = JSON.parse(all[(place + step + all.length) % all.length]);
    this.app.state.adjust({ lens, statistic });
  }

  /** @param {number} step */
  moveCursor(step) {
    const { model } = this.app.heat;
    if (!model) return;
    const now = this.app.cursor.step === null ? model.columns : model.block.step.indexOf(this.app.cursor.step);
    const column = Math.min(Math.max(now + step, 0), model.columns - 1);
    this.app.state.set({ at: model.block.step[column] });
    this.app.cursor.point(model.block.step[column], null);
  }
}
