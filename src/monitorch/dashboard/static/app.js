// The page: keeps state, data and panels in sync.

import { convert, edges, places, Ruler } from "page/axis.js";
import { Data } from "page/data.js";
import { element } from "page/dom.js";
import { Drawing } from "page/drawing.js";
import { FindingsPanel } from "page/findings_panel.js";
import { HeatMap } from "page/heat_map.js";
import { heatModel } from "page/heat_model.js";
import { Help, listen } from "page/keys.js";
import { Legend } from "page/legend.js";
import { matcher, title, WHOLE_RUN } from "page/names.js";
import { Navigation } from "page/navigation.js";
import { Notice } from "page/notice.js";
import { Overview } from "page/overview.js";
import { Refusal } from "page/remote_source.js";
import { Side } from "page/side.js";
import { State } from "page/state.js";
import { printable } from "page/text.js";
import { HeatBar, TopBar } from "page/toolbar.js";

/** @import { Block } from "page/blocks.js" */
/** @import { Source } from "page/curves.js" */
/** @import { Head, Part, RunError, RunSource } from "page/data.js" */
/** @import { Health } from "page/health.js" */
/** @import { HeatModel } from "page/heat_model.js" */

const SECOND = 1000;
const SLOW_SECONDS = 5;
const CHART_COLUMNS = 300;

/** The moment that the mouse points at, shared by all panels. Steps are the one axis that all of them know. */
class Cursor extends EventTarget {
  /** @type {number | null} */
  step = null;

  /**
   * Move the cursor to a step, or to none; `from` is the panel that did it and need not be told.
   * @param {number | null} step
   * @param {unknown} from
   */
  point(step, from) {
    if (step === this.step) return;
    this.step = step;
    this.dispatchEvent(new CustomEvent("move", { detail: from }));
  }
}

export class App {
  /**
   * @param {RunSource} source
   * @param {HTMLElement} root
   */
  constructor(source, root) {
    this.source = source;
    this.drawing = new Drawing();
    this.state = new State();
    this.cursor = new Cursor();
    this.data = new Data(source, this.drawing, () => this.later());
    this.isPaused = false;
    this.isBusy = false;
    this.isStale = false;
    this.isMissing = false;
    this.isEmpty = false;
    this.hasRevealed = false;
    this.askedResolution = 0;
    this.alertsShown = "";
    /** @type {{ of: Health | undefined, places: Map<string, number> }} */
    this.ranking = { of: undefined, places: new Map() };
    this.followed = "";
    /** @type {(() => void) | undefined} */
    this.unfollow = undefined;
    /** @type {Partial<Record<Part, Block[][]>>} */
    this.parts = {};
    /** @type {Block | null} */
    this.axisBlock = null;
    /** @type {Float64Array | null} */
    this.axisPlaces = null;
    /** @type {Ruler | null} The visible part of the axis, of all that is shown. */
    this.ruler = null;
    /** @type {unknown[]} */
    this.modelParts = [];
    /** @type {HeatModel | null} */
    this.modelBefore = null;
    this.draw = () => this.render();
    this.navigation = new Navigation(this);
    this.notice = new Notice();
    this.help = new Help();
    this.legend = new Legend(this);
    this.heat = new HeatMap(this);
    this.heatBar = new HeatBar(this);
    this.topBar = new TopBar(this);
    this.side = new Side(this);
    this.findings = new FindingsPanel(this);
    this.overview = new Overview(this);
    const heat = element(
      "section",
      { class: "heat-panel panel", "aria-label": "Heat map" },
      this.heatBar.root,
      this.heat.root,
      this.legend.root,
    );
    const column = element("div", { class: "main-column" }, this.findings.root, this.overview.root, heat);
    this.main = element("main", {}, column, this.side.root);
    root.replaceChildren(this.topBar.root, this.notice.root, this.main, this.help.root);
    this.state.addEventListener("change", () => this.changed());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.later());
    listen(this);
  }

  get runs() {
    return this.data.runs;
  }
  get heads() {
    return this.data.heads;
  }
  get head() {
    return this.heads.get(this.state.run);
  }
  get health() {
    return this.data.health.get(this.state.run)?.found;
  }
  /** Changes when the health of the run may have. */
  get healthStamp() {
    return this.data.health.get(this.state.run)?.stamp ?? "";
  }
  /** What is counted along the axis; a tick is an epoch only where every tick ends one. */
  get axisName() {
    return this.state.x === "epoch" ? this.tickUnit : this.state.x;
  }
  get tickUnit() {
    return this.head?.meta.tick_unit === "tick" ? "tick" : "epoch";
  }
  /** Which tab is open: where there is no run to look at, it is the list of those that there are. */
  get view() {
    return this.isMissing || this.isEmpty ? "runs" : this.state.tab;
  }

  start() {
    const { compared } = this.source;
    if (compared && !this.state.text()) this.state.adjust({ compare: compared });
    this.apply();
    this.cursor.point(this.state.at, null);
    this.refresh();
    if (!this.source.isLive) return;
    let seconds = 0;
    setInterval(() => {
      // a killed run sends nothing, and the runs in the list are not followed
      const isWatched = this.view === "runs" && !document.hidden;
      if (isWatched || ++seconds % SLOW_SECONDS === 0) this.refresh();
    }, SECOND);
  }

  /** Something was chosen: show it with what is known, then ask for what is not. */
  changed() {
    this.apply();
    this.later();
    this.refresh(true);
  }

  /** What the whole page looks like, which sizes depend on. */
  apply() {
    document.documentElement.dataset.theme = this.state.theme;
    this.main.dataset.view = this.view;
  }

  resized() {
    if (this.parts.heat?.length && this.heat.resolution !== this.askedResolution) this.refresh(true);
  }

  /**
   * Ask for news, one request at a time.
   * @param {boolean} isForced
   */
  async refresh(isForced = false) {
    if (this.isPaused && !isForced) return;
    if (this.isBusy) {
      this.isStale = true;
      return;
    }
    this.isBusy = true;
    const end = this.drawing.begin();
    try {
      await this.pull();
      this.notice.tell("");
    } catch (error) {
      this.complain(error);
    }
    this.isBusy = false;
    const isStale = this.isStale;
    this.isStale = false;
    if (isStale) this.refresh(true);
    end();
  }

  /** @param {unknown} error */
  complain(error) {
    const isOffline = error instanceof TypeError;
    if (!isOffline && !(error instanceof Refusal)) console.error(error);
    this.notice.tell(
      isOffline
        ? "The server does not answer. It may have stopped; this page keeps trying."
        : error instanceof Error
          ? error.message
          : String(error),
    );
    this.topBar.show(); // another run can still be chosen
  }

  async pull() {
    const { state, data } = this;
    const asked = state.text();
    const { missing, ...names } = await data.names(state, this.view === "runs");
    if (state.text() !== asked) return; // something was chosen meanwhile, and is asked for next
    this.isMissing = missing;
    this.isEmpty = !names.run;
    this.follow([missing ? "" : names.run, ...names.compare].filter(Boolean));
    if (this.isMissing || this.isEmpty) {
      await data.summarise();
      this.later();
      return;
    }
    const lost = state.compare.filter((name) => name !== names.run && !names.compare.includes(name));
    if (lost.length) this.notice.tell(`There is no run ${lost.join(", ")} to compare with.`, true);
    const { isStale } = this;
    state.adjust({
      ...names,
      ...data.statistic(names.run, state),
      difference: state.difference && names.compare.length > 0,
    });
    this.isStale = isStale; // the question that follows is about what was adjusted
    this.apply();
    this.askedResolution = this.heat.resolution;
    await data.numbers(state, { heat: this.askedResolution, chart: CHART_COLUMNS }, (part, blocks) => {
      const before = this.parts[part];
      if (before && isSame(before, blocks)) return;
      this.parts[part] = blocks;
      this.later();
    });
    if (this.view === "runs" || this.alertsShown !== this.alertStamp()) this.later();
    else this.topBar.badge.show();
  }

  /** Draw before the next frame, once for all that has arrived. */
  later() {
    this.drawing.soon(this.draw);
  }

  /** @param {string[]} names */
  follow(names) {
    const wanted = JSON.stringify(names);
    if (wanted === this.followed || !this.source.follow) return;
    this.followed = wanted;
    this.unfollow?.();
    this.unfollow = this.source.follow(names, () => this.refresh());
  }

  /** Draw everything from what is known. */
  render() {
    const { state, head } = this;
    const { heat, strip, layer = [], total = [] } = this.parts;
    this.apply();
    this.topBar.show();
    if (this.isMissing || this.isEmpty) {
      this.overview.root.hidden = this.findings.root.hidden = true;
      this.side.show({ specs: [], sources: [], ruler: null, total: undefined, model: null });
      document.title = "monitorch";
      return;
    }
    if (!heat || !strip || !head) return;
    this.alertsShown = this.alertStamp();
    this.heatBar.show();
    const block = heat[0]?.[0]?.columns ? heat[0][0] : null;
    const model = block ? this.model(block, state.difference ? (heat[1]?.[0] ?? null) : null) : null;
    this.measure(block, strip[0]?.[0] ?? null);
    this.heat.show(model, this.whyEmpty(head));
    const { ruler } = this;
    this.findings.show();
    this.overview.root.hidden = !ruler || !strip[0]?.length;
    if (ruler) this.overview.show(this.data.specs(state.run, WHOLE_RUN), this.sources(strip), ruler);
    if (block?.lens === state.lens && block.statistic === state.statistic && !this.hasRevealed) {
      this.heat.reveal(this.heat.chosen); // a link, or a finding, may lead to a layer far below
      this.hasRevealed = true;
    }
    this.side.show({
      specs: this.data.specs(state.run, state.layer, state),
      sources: this.sources(layer),
      ruler,
      total: total[0]?.[0],
      model,
    });
    document.title = `${printable(state.run)} · monitorch`;
  }

  /** @param {Head} head */
  whyEmpty({ lenses, status }) {
    if (lenses.length) return "No layer has numbers in these steps.";
    return status === "running" ? "This run has no numbers yet." : "This run has no numbers.";
  }

  /**
   * Cached while nothing it depends on has changed.
   * @param {Block} block
   * @param {Block | null} other
   */
  model(block, other) {
    const { cell, colour, x, search, lens, statistic, run } = this.state;
    const started = this.started(run);
    const depends = [block, other, cell, colour, x, search, lens, statistic, this.alertsShown, started];
    if (this.modelBefore && isSame(this.modelParts, depends)) return this.modelBefore;
    this.modelParts = depends;
    const look = this.head?.lenses
      .find((candidate) => candidate.name === lens)
      ?.statistics.find(({ name }) => name === statistic);
    this.modelBefore = heatModel(block, { cell, colour, look, x, started, other });
    return this.modelBefore;
  }

  /**
   * @param {Block[][]} parts
   * @returns {Source[]}
   */
  sources(parts) {
    return parts.map((blocks, index) => {
      const name = [this.state.run, ...this.state.compare][index];
      return { name, blocks, started: this.started(name) };
    });
  }

  /** @param {string} run */
  started(run) {
    return Number(this.heads.get(run)?.meta.started ?? 0);
  }

  /**
   * Find the axis of what is shown: layers may have numbers of a part of the run only.
   * @param {Block | null} layers
   * @param {Block | null} whole
   */
  measure(layers, whole) {
    const { x, logx, run } = this.state;
    const [own, all] = [layers, whole].map((block) => (block?.columns ? places(block, x, this.started(run)) : null));
    const ends = own ? [...edges(own)] : all ? [...edges(all)] : [];
    const isLonger = own && all && (all[0] < own[0] || all[all.length - 1] > ends[own.length]);
    if (isLonger) {
      ends.unshift(Math.min(all[0], own[0]));
      ends.push(Math.max(edges(all)[all.length], ends[ends.length - 1]));
    }
    this.axisBlock = own && !isLonger ? layers : whole;
    this.axisPlaces = own && !isLonger ? own : all;
    this.ruler = ends.length ? new Ruler(ends, x, logx) : null;
  }

  /** @param {number} step */
  placeOf(step) {
    return this.axisPlaces && this.axisBlock ? convert(step, this.axisBlock.step, this.axisPlaces) : step;
  }

  /** @param {number} place */
  stepOf(place) {
    return this.axisPlaces && this.axisBlock ? convert(place, this.axisPlaces, this.axisBlock.step) : place;
  }

  /**
   * Where a layer stands among the worst; those that the server does not know come last.
   * @param {string} name
   */
  placeAmongWorst(name) {
    const { health } = this;
    if (this.ranking.of !== health)
      this.ranking = { of: health, places: new Map(health?.layers.map((layer, place) => [layer, place])) };
    return this.ranking.places.get(name) ?? Infinity;
  }

  /** Events of the run that concern a layer which is shown. */
  alerts() {
    const matches = matcher(this.state.search).test;
    return (this.data.events.get(this.state.run)?.list ?? []).filter((event) => !event.layer || matches(event.layer));
  }

  /** Those in the steps that are shown. */
  visibleAlerts() {
    if (!this.axisBlock?.columns) return [];
    const { step, last, columns } = this.axisBlock;
    return this.alerts().filter((event) => event.step >= step[0] && event.step <= last[columns - 1]);
  }

  /**
   * The exception that ended the run, if any.
   * @returns {RunError | null}
   */
  runError() {
    return this.head?.error ?? this.head?.meta.error ?? null;
  }

  /** Changes with the events and with the list of runs. */
  alertStamp() {
    return JSON.stringify([
      this.data.events.get(this.state.run)?.list.length,
      this.runs.map((run) => [run.name, run.status]),
      this.healthStamp,
    ]);
  }

  statisticTitle() {
    return title(this.data.facts(this.state.run, this.state));
  }

  focusFilter() {
    (this.view === "runs" ? this.side.runs.search : this.heatBar.search).focus();
  }

  togglePause() {
    if (!this.source.isLive) return;
    this.isPaused = !this.isPaused;
    this.topBar.badge.show();
    this.refresh();
  }

  /** Charts keep their colours, so they are made anew with another theme. */
  get themeKey() {
    return `${this.state.theme}/${matchMedia("(prefers-color-scheme: dark)").matches}`;
  }
}

/**
 * Whether two lists hold the same objects, or lists of the same objects.
 * @param {unknown[]} one
 * @param {unknown[]} other
 * @returns {boolean}
 */
function isSame(one, other) {
  return (
    one.length === other.length &&
    one.every((item, index) => {
      const beside = other[index];
      return item === beside || (Array.isArray(item) && Array.isArray(beside) && isSame(item, beside));
    })
  );
}
