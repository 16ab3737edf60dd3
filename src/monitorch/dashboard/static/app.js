// The page: keeps state, data and panels in step.

import { convert, places, Ruler } from "page/axis.js";
import { Badge } from "page/badge.js";
import { ChartList } from "page/chart_list.js";
import { Cursor } from "page/cursor.js";
import { Data } from "page/data.js";
import { element } from "page/dom.js";
import { HeatMap } from "page/heat_map.js";
import { heatModel } from "page/heat_model.js";
import { Help, listen } from "page/keys.js";
import { Legend } from "page/legend.js";
import { matcher, title, WHOLE_RUN } from "page/names.js";
import { Navigation } from "page/navigation.js";
import { Notice } from "page/notice.js";
import { Side } from "page/side.js";
import { State } from "page/state.js";
import { HeatBar, nextTheme, TopBar } from "page/toolbar.js";

const SLOW_MILLISECONDS = 5000;

export class App {
  constructor(source, root) {
    this.source = source;
    this.state = new State();
    this.cursor = new Cursor();
    this.data = new Data(source);
    this.isPaused = false;
    this.parts = { layer: [], total: [] };
    this.badge = new Badge(this);
    this.legend = new Legend(this);
    this.help = new Help();
    this.heat = new HeatMap(this);
    this.heatBar = new HeatBar(this);
    this.topBar = new TopBar(this);
    this.side = new Side(this);
    this.strip = new ChartList(this, "strip");
    this.notice = new Notice();
    this.navigation = new Navigation(this);
    const heat = element(
      "section",
      { class: "heat-panel panel", "aria-label": "Heat map" },
      this.heatBar.root,
      this.heat.root,
      this.legend.root,
    );
    root.replaceChildren(
      this.topBar.root,
      this.notice.root,
      element("main", {}, element("div", { class: "main-column" }, this.strip.root, heat), this.side.root),
      this.help.root,
    );
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
  get headAt() {
    return this.head?.at;
  }

  start() {
    this.applyTheme();
    this.refresh();
    if (!this.source.isLive) return;
    setInterval(() => this.refresh(), SLOW_MILLISECONDS); // a run that dies says nothing
  }

  /** Something was chosen: show it with what is known, then ask for what is not. */
  changed() {
    this.applyTheme();
    this.later();
    this.refresh(true);
  }

  resized() {
    if (this.parts.heat && this.heat.resolution !== this.askedResolution) this.refresh(true);
  }

  /** Ask for news, one question at a time. */
  async refresh(isForced = false) {
    if (this.isPaused && !isForced) return;
    if (this.isBusy) {
      this.isStale = true;
      return;
    }
    this.isBusy = true;
    try {
      await this.pull();
      this.notice.tell("");
    } catch (error) {
      this.notice.tell(
        error instanceof TypeError
          ? "The server does not answer. It may have ended; this page tries again."
          : error.message,
      );
      if (!(error instanceof TypeError) && !error.status) console.error(error);
      this.topBar.show(); // another run can still be chosen
    }
    this.isBusy = false;
    if (this.isStale) {
      this.isStale = false;
      this.refresh(true);
    }
  }

  async pull() {
    const { state, data } = this;
    const asked = state.text();
    const names = await data.names(state);
    if (state.text() !== asked) return; // something was chosen meanwhile, and is asked for next
    this.follow([names.run, ...names.compare].filter(Boolean));
    if (!names.run) {
      this.heat.show(null, "No runs yet. This page shows the first one as soon as it begins.");
      return;
    }
    state.set({
      ...names,
      ...data.statistic(names.run, state),
      difference: state.difference && names.compare.length > 0,
    });
    this.askedResolution = this.heat.resolution;
    await data.numbers(state, { heat: this.askedResolution, chart: 300 }, (part, blocks) => {
      const before = this.parts[part];
      if (before?.length === blocks.length && blocks.every((block, index) => block === before[index])) return;
      this.parts[part] = blocks;
      this.later();
    });
    if (this.alertsShown !== this.alertStamp()) this.later();
    else this.badge.show();
  }

  /** Draw before the next frame, once for all that has arrived; a page that nobody sees has no frames. */
  later() {
    if (document.hidden) this.render();
    else this.frame ??= requestAnimationFrame(() => this.render());
  }

  follow(names) {
    const wanted = JSON.stringify(names);
    if (wanted === this.followed || !this.source.isLive) return;
    this.followed = wanted;
    this.unfollow?.();
    this.unfollow = this.source.follow(names, () => this.refresh());
  }

  /** Draw everything from what is known. */
  render() {
    this.frame = null;
    const { state, parts: numbers } = this;
    if (!numbers.heat || !numbers.strip || !this.head) return;
    this.alertsShown = this.alertStamp();
    this.topBar.show();
    this.heatBar.show();
    this.badge.show();
    const [block] = numbers.heat[0] ?? [];
    this.other = state.difference ? numbers.heat[1]?.[0] : null;
    const model = block?.columns ? this.model(block) : null;
    this.axisBlock = block?.columns ? block : numbers.strip[0]?.[0];
    this.axisPlaces = this.axisBlock?.columns ? places(this.axisBlock, state.x, this.started(state.run)) : null;
    this.heat.show(
      model,
      this.head?.lenses.length ? "There are no numbers of layers in these steps." : "This run has no numbers yet.",
    );
    const ruler = model ? this.heat.ruler : this.ownRuler();
    if (ruler) this.strip.show(this.data.specs(state.run, WHOLE_RUN), this.sources(numbers.strip), WHOLE_RUN, ruler);
    this.strip.root.hidden = !ruler || !numbers.strip[0]?.length;
    if (model && !this.hasRevealed) this.heat.reveal(state.layer); // a link may lead to a layer far below
    this.hasRevealed ||= Boolean(model);
    this.side.show({
      specs: this.data.specs(state.run, state.layer, state),
      sources: this.sources(numbers.layer),
      ruler,
      total: numbers.total[0]?.[0],
      model,
    });
    document.title = `${state.run} · monitorch`;
  }

  /** The same one as before while nothing it depends on has changed. */
  model(block) {
    const { state } = this;
    const parts = [
      block,
      this.other,
      state.cell,
      state.colour,
      state.x,
      state.search,
      state.lens,
      state.statistic,
      this.alertsShown,
      this.started(state.run),
    ];
    if (this.modelParts?.every((part, index) => part === parts[index])) return this.modelBefore;
    this.modelParts = parts;
    const look = this.head.lenses
      .find((lens) => lens.name === state.lens)
      ?.statistics.find(({ name }) => name === state.statistic);
    const alerts = new Map();
    for (const event of this.alerts()) alerts.set(event.layer, (alerts.get(event.layer) ?? 0) + 1);
    this.modelBefore = heatModel(block, {
      cell: state.cell,
      colour: state.colour,
      look,
      x: state.x,
      started: this.started(state.run),
      other: this.other,
      alerts,
    });
    return this.modelBefore;
  }

  sources(parts) {
    return parts.map((blocks, index) => {
      const name = [this.state.run, ...this.state.compare][index];
      return { name, blocks, started: this.started(name) };
    });
  }

  started(run) {
    return Number(this.heads.get(run)?.meta.started ?? 0);
  }

  /** The axis of a run that has no layers. */
  ownRuler() {
    const all = this.axisPlaces;
    if (!all?.length) return null;
    return new Ruler(all.length > 1 ? all : [all[0], all[0] + 1], this.state.x, this.state.logx);
  }

  placeOf(step) {
    return this.axisPlaces ? convert(step, this.axisBlock.step, this.axisPlaces) : step;
  }

  stepOf(place) {
    return this.axisPlaces ? convert(place, this.axisPlaces, this.axisBlock.step) : place;
  }

  /** Events of the run that concern a layer which is shown. */
  alerts() {
    const matches = matcher(this.state.search).test;
    return (this.data.events.get(this.state.run)?.list ?? []).filter((event) => !event.layer || matches(event.layer));
  }

  /** Those in the steps that are shown. */
  visibleAlerts() {
    const { step, last, columns } = this.axisBlock ?? { columns: 0 };
    return columns ? this.alerts().filter((event) => event.step >= step[0] && event.step <= last[columns - 1]) : [];
  }

  /** Changes with the events and with the list of runs. */
  alertStamp() {
    return JSON.stringify([
      this.data.events.get(this.state.run)?.list.length,
      this.runs.map((run) => [run.name, run.status]),
    ]);
  }

  statisticTitle() {
    return title(this.state.statistic);
  }

  togglePause() {
    if (!this.source.isLive) return;
    this.isPaused = !this.isPaused;
    this.badge.show();
    this.refresh();
  }

  nextTheme() {
    this.state.set({ theme: nextTheme(this.state.theme) });
  }

  applyTheme() {
    document.documentElement.dataset.theme = this.state.theme;
  }

  /** Charts keep their colours, so they are made anew with another theme. */
  get themeKey() {
    return `${this.state.theme}/${matchMedia("(prefers-color-scheme: dark)").matches}`;
  }
}
