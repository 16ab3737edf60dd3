// Moves between layers, runs, statistics and points in time.

import { statisticOf } from "page/health.js";
import { favourite, matcher, menu, WHOLE_RUN } from "page/names.js";

/** @import { App } from "page/app.js" */
/** @import { RunEvent } from "page/data.js" */
/** @import { Finding } from "page/health.js" */
/** @import { Changes } from "page/state.js" */

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
    const layer = event.layer ?? this.app.state.layer;
    this.openLayer(layer, { at: event.step, ...this.with(event.step) });
  }

  /**
   * Go to the layer and step of a finding, in a statistic that shows what it rests on; without a layer, to the loss.
   * @param {Finding} finding
   */
  openFinding({ layer: place, step, evidence }) {
    const { app } = this;
    const changes = { at: step, ...this.with(step) };
    if (place === null) {
      app.state.set(changes);
      app.cursor.point(step, null);
      app.overview.root.scrollIntoView({ block: "nearest" });
      return;
    }
    const { lenses, layers } = app.head ?? { lenses: [], layers: [] };
    // a part of the model that has no numbers of its own is shown by the first layer in it
    const inside = layers.find(({ name }) => name === place) ?? layers.find(({ name }) => name.startsWith(`${place}.`));
    const layer = inside?.name ?? place;
    const { members } = app.data.family(app.state.run, layer);
    const shown = evidence.map(({ series }) => statisticOf(lenses, series, members)).find((found) => found);
    this.openLayer(layer, { ...changes, ...(shown ?? this.statisticWith([layer], app.state.lens)) });
    app.heat.root.scrollIntoView({ block: "nearest" });
  }

  /**
   * Open a layer, and bring its row into view: with a filter that lets it through, in groups that are open, and in a
   * statistic that has it.
   * @param {string} layer
   * @param {Changes} changes
   */
  openLayer(layer, changes = {}) {
    const { app } = this;
    const { state } = app;
    const { members } = app.data.family(state.run, layer);
    app.hasRevealed = false;
    state.set({
      layer,
      tab: "layer",
      closed: state.closed.filter((group) => !`${layer}.`.startsWith(`${group}.`)),
      opened: [...new Set([...state.opened, ...groupsOf(layer)])],
      ...(!layer || matcher(state.search).test(layer) ? {} : { search: "" }),
      ...changes,
      ...this.statisticWith(members, changes.lens ?? state.lens),
    });
    if (changes.at !== undefined) app.cursor.point(changes.at, null);
    app.later();
  }

  /**
   * A statistic with a row for one of these layers; nothing if the chosen lens has one, or none has.
   * @param {string[]} layers
   * @param {string} chosen
   * @returns {Changes}
   */
  statisticWith(layers, chosen) {
    const lenses = this.app.head?.lenses.filter(({ name }) => name !== WHOLE_RUN) ?? [];
    const fitting = lenses.filter((lens) => lens.layers.some((layer) => layers.includes(layer)));
    if (!fitting.length || fitting.some(({ name }) => name === chosen)) return {};
    const [lens, statistic] = favourite(fitting);
    return { lens, statistic };
  }

  /**
   * The whole run, if the steps that are shown are without this one.
   * @param {number} step
   * @returns {Changes}
   */
  with(step) {
    const { first, last } = this.app.state;
    const isOutside = (first !== null && step < first) || (last !== null && step > last);
    return isOutside ? { first: null, last: null } : {};
  }

  /**
   * Show a run; if it was a compared one, it swaps places with the shown run.
   * @param {string} run
   * @param {Changes} changes
   */
  openRun(run, changes = {}) {
    const compare = this.app.state.compare.includes(run)
      ? this.app.state.compare.map((name) => (name === run ? this.app.state.run : name))
      : this.app.state.compare;
    this.app.state.set({ run, compare, first: null, last: null, at: null, ...changes });
  }

  /**
   * The next layer in the order of the rows, also in a group that is closed only because there are so many.
   * @param {number} step
   */
  nextLayer(step) {
    const { heat, state, data } = this.app;
    const layers = heat.model?.layers ?? [];
    const open = heat.rows.filter((row) => !row.isGroup || !state.closed.includes(row.name));
    const names = open.flatMap((row) => row.members.map((index) => layers[index]));
    if (!names.length) return;
    const place = names.indexOf(heat.chosen);
    const next = place < 0 ? (step > 0 ? 0 : names.length - 1) : Math.min(Math.max(place + step, 0), names.length - 1);
    state.adjust({ layer: data.named(state.run, names[next]) });
    heat.reveal(names[next]);
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

/**
 * The groups that a layer may be in.
 * @param {string} layer
 */
function groupsOf(layer) {
  const parts = layer.split(".").slice(0, -1);
  return parts.map((_, place) => parts.slice(0, place + 1).join("."));
}
