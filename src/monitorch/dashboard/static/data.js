// What the page knows about its runs. Numbers are requested again only when they, or the request, have changed.

import { charts, family, favourite, statisticsOf, WHOLE_RUN } from "page/names.js";

/** @import { Block, Plane } from "page/blocks.js" */
/** @import { Drawing } from "page/drawing.js" */
/** @import { Health } from "page/health.js" */
/** @import { Histogram } from "page/histogram.js" */
/** @import { ChartSpec, Family } from "page/names.js" */
/** @import { State } from "page/state.js" */

/** @typedef {{ name: string, kind: string | null, parameters: number | null }} LayerFacts */

/**
 * What a number is. `tag` is its plot, `curve` one of its curves (empty if it has only one), `line` what it is of that
 * curve. An edge belongs to a `band` and is one `side` of it. `label` is what it is called where its plot is known;
 * `error` is the standard error of an estimate, and `error_text` the same as people write it.
 * @typedef {{
 *   name: string, scale: string, limits: [number, number] | null, tag: string, curve: string, line: string,
 *   role: "line" | "edge" | "share" | "count", band: string, side: "" | "low" | "high", label: string,
 *   error: number | null, error_text: string,
 * }} StatisticFacts
 */

/**
 * @typedef {{
 *   name: string, statistics: StatisticFacts[], layers: string[], ticks: number,
 *   first_step: number | null, last_step: number | null, histograms: string[],
 * }} LensFacts
 */

/**
 * The exception that ended a run, with the last lines of its traceback.
 * @typedef {{ type: string, message: string, traceback: string[] }} RunError
 */

/**
 * @typedef {Record<string, unknown> & {
 *   id?: string, started?: number, ended?: number, heartbeat?: number, tick_unit?: "epoch" | "tick",
 * }} Meta
 */

/**
 * Everything about a run except its numbers; `at` is when this page received it.
 * @typedef {{
 *   name: string, status: string, last_step: number | null, age: number, tick_age: number | null, dropped: number,
 *   overhead: number | null, overhead_at_least: boolean, meta: Meta & { error?: RunError | null },
 *   layers: LayerFacts[], lenses: LensFacts[], error?: RunError | null, at?: number,
 * }} Head
 */

/**
 * A run in the list; `problem` says why it cannot be read, as a sentence that continues after its name.
 * @typedef {{
 *   name: string, status: string, ticks: number, last_step: number | null, age: number, size: number,
 *   problem?: string | null,
 * }} RunInfo
 */

/**
 * A run in the list of runs: its facts, and the newest number of each line of the whole run.
 * @typedef {{ meta: Meta, verdict: string, statistics: StatisticFacts[], newest: Record<string, number | string> }} Summary
 */

/**
 * @typedef {{
 *   id: number, step: number, epoch: number, time: number, kind: string, severity: "info" | "warning" | "error",
 *   layer: string | null, statistic: string | null, body: Record<string, unknown>,
 * }} RunEvent
 */

/** @typedef {[lens: string, statistic: string][]} Pairs */

/**
 * @typedef {{
 *   run: string, series: Pairs, layers?: string[], first: number | null, last: number | null, resolution: number,
 *   planes?: Plane[],
 * }} Question
 */

/** @typedef {{ run: string, lens: string, tag: string, layers: string[], step: number | null }} HistogramQuestion */

/**
 * Where runs come from; `compared` are those to show beside the first one if nothing was chosen yet.
 * @typedef {{
 *   isLive: boolean,
 *   compared?: string[],
 *   runs(): Promise<RunInfo[]>,
 *   head(run: string): Promise<Head>,
 *   health(run: string): Promise<Health>,
 *   events(run: string): Promise<RunEvent[]>,
 *   summaries(runs: string[]): Promise<Record<string, Summary>>,
 *   windows(question: Question): Promise<Block[]>,
 *   histogram(question: HistogramQuestion): Promise<Histogram | null>,
 *   follow?(runs: string[], callback: () => void): () => void,
 * }} RunSource
 */

/** @typedef {"heat" | "strip" | "layer" | "total"} Part */

const RUNS_MILLISECONDS = { shown: 900, hidden: 5000 };
/** The server needs some time to rank layers: it is asked again after so many times as long as it took. */
const HEALTH_PAUSE = 10;
const READABLE = ["running", "finished", "crashed"];

export class Data {
  /**
   * @param {RunSource} source
   * @param {Drawing} drawing
   * @param {() => void} onlist  called when the list of runs has come
   */
  constructor(source, drawing, onlist) {
    this.source = source;
    this.drawing = drawing;
    this.onlist = onlist;
    /** @type {RunInfo[]} */
    this.runs = [];
    this.runsAt = 0;
    /** @type {Map<string, Head>} */
    this.heads = new Map();
    /** @type {Map<string, { stamp: string, list: RunEvent[] }>} */
    this.events = new Map();
    /** @type {Map<string, { stamp: string, found: Health, due: number }>} */
    this.health = new Map();
    /** @type {Map<string, { stamp: string, summary: Summary | null }>} */
    this.summaries = new Map();
    /** @type {Map<string, { key: string, blocks: Block[] }>} */
    this.answers = new Map();
  }

  /**
   * The names to show, and the heads of those runs. A requested run that cannot be shown is `missing`; such runs
   * are left out of those to compare with.
   * @param {State} state
   * @param {boolean} isListShown
   * @returns {Promise<{ run: string, compare: string[], missing: boolean }>}
   */
  async names(state, isListShown) {
    const isOld = performance.now() - this.runsAt > RUNS_MILLISECONDS[isListShown ? "shown" : "hidden"];
    if (!this.isReadable(state.run) || (isListShown && isOld)) await this.list();
    else if (isOld) this.list().catch(() => {}); // nobody waits for it
    const run = state.run || (this.runs.find(({ name }) => this.isReadable(name))?.name ?? "");
    const missing = Boolean(run) && !this.isReadable(run);
    const compare = state.compare.filter((name) => this.isReadable(name) && name !== run);
    await Promise.all([missing ? "" : run, ...compare].filter(Boolean).map((name) => this.head(name)));
    return { run, compare, missing };
  }

  /** @param {string} name */
  isReadable(name) {
    return READABLE.includes(this.runs.find((run) => run.name === name)?.status ?? "");
  }

  async list() {
    this.runsAt = performance.now();
    const end = this.drawing.begin();
    try {
      this.runs = await this.source.runs();
      this.onlist();
    } finally {
      end();
    }
  }

  /** @param {string} name */
  async head(name) {
    const head = await this.source.head(name);
    head.at = performance.now();
    this.heads.set(name, head);
  }

  /**
   * Changes when something was stored, which the heartbeat shows.
   * @param {string} name
   */
  stamp(name) {
    const { heartbeat, id } = this.heads.get(name)?.meta ?? {};
    return `${id}/${heartbeat}`;
  }

  /** @param {string} name */
  async eventsOf(name) {
    const stamp = this.stamp(name);
    if (this.events.get(name)?.stamp !== stamp) this.events.set(name, { stamp, list: await this.source.events(name) });
  }

  /** @param {string} name */
  async healthOf(name) {
    const stamp = this.stamp(name);
    const before = this.health.get(name);
    const begin = performance.now();
    if (before && (before.stamp === stamp || begin < before.due)) return;
    const found = await this.source.health(name);
    const end = performance.now();
    this.health.set(name, { stamp, found, due: end + HEALTH_PAUSE * (end - begin) });
  }

  /** What the list of runs tells of each; those that have not changed are not asked for again. */
  async summarise() {
    const stamps = new Map(
      this.runs.map((run) => [run.name, `${run.status}/${run.ticks}/${run.last_step}/${run.size}`]),
    );
    const wanted = [...stamps].filter(([name, stamp]) => this.summaries.get(name)?.stamp !== stamp);
    if (!wanted.length) return;
    const found = await this.source.summaries(wanted.map(([name]) => name));
    for (const [name, stamp] of wanted) this.summaries.set(name, { stamp, summary: found[name] ?? null });
  }

  /**
   * The statistic to show: the chosen one if the run has it.
   * @param {string} run
   * @param {State} state
   */
  statistic(run, state) {
    const lenses = this.heads.get(run)?.lenses ?? [];
    const lens = lenses.find((candidate) => candidate.name === state.lens);
    if (lens?.statistics.some((statistic) => statistic.name === state.statistic))
      return { lens: state.lens, statistic: state.statistic };
    const [name, statistic] = favourite(lenses);
    return { lens: name, statistic };
  }

  /**
   * What is known of a statistic.
   * @param {string} run
   * @param {Pick<State, "lens" | "statistic">} chosen
   */
  facts(run, { lens: chosen, statistic }) {
    const lens = this.heads.get(run)?.lenses.find(({ name }) => name === chosen);
    return lens?.statistics.find(({ name }) => name === statistic);
  }

  /**
   * All numbers on the page; calls back for each part when it has arrived.
   * @param {State} state
   * @param {{ heat: number, chart: number }} sizes
   * @param {(part: Part, blocks: Block[][]) => void} onpart
   */
  async numbers(state, sizes, onpart) {
    const names = [state.run, ...state.compare];
    const span = { first: state.first, last: state.last };
    /** @type {Pairs} */
    const heatSeries = state.lens ? [[state.lens, state.statistic]] : [];
    const specs = this.specs(state.run, state.layer);
    const { members } = this.family(state.run, state.layer);
    const layer = { ...span, layers: members, resolution: sizes.chart };
    const wholeRun = { ...span, layers: [WHOLE_RUN], resolution: sizes.chart };
    const heat = { ...span, resolution: sizes.heat, planes: [state.cell] };
    const heatRuns = state.tab === "runs" ? [] : names.slice(0, state.difference ? 2 : 1);
    const layerRuns = state.tab === "layer" && state.layer ? names : [];
    const totalRuns = state.tab === "table" ? [state.run] : [];
    /** @type {[Part, Promise<Block[]>[]][]} */
    const wanted = [
      ["heat", heatRuns.map((run) => this.blocks("heat", run, heatSeries, heat))],
      ["strip", names.map((run) => this.blocks("strip", run, seriesOf(this.specs(run, WHOLE_RUN)), wholeRun))],
      ["layer", layerRuns.map((run) => this.blocks("layer", run, seriesOf(specs), layer))],
      ["total", totalRuns.map((run) => this.blocks("total", run, heatSeries, { ...span, resolution: 1 }))],
    ];
    await Promise.all([
      this.healthOf(state.run), // with the numbers: the page begins with it
      ...wanted.map(async ([part, blocks]) => onpart(part, await Promise.all(blocks))),
    ]);
    // not now: it would delay the numbers
    await Promise.all([this.eventsOf(state.run), state.tab === "runs" ? this.summarise() : null]);
  }

  /**
   * The charts of a layer, the one of the chosen statistic first.
   * @param {string} run
   * @param {string} layer
   * @param {State | null} state
   */
  specs(run, layer, state = null) {
    const all = charts(this.heads.get(run)?.lenses ?? [], this.family(run, layer));
    const isChosen = (/** @type {ChartSpec} */ spec) =>
      state !== null &&
      spec.lens === state.lens &&
      spec.curves.some((curve) => statisticsOf(curve).includes(state.statistic));
    return [...all.filter(isChosen), ...all.filter((spec) => !isChosen(spec))];
  }

  /**
   * @param {string} run
   * @param {string} layer
   * @returns {Family}
   */
  family(run, layer) {
    return layer === WHOLE_RUN ? { module: layer, members: [layer] } : family(this.heads.get(run)?.layers ?? [], layer);
  }

  /**
   * The layer that shows one: a model that is a single layer has no name to choose it by, but its parameters do.
   * @param {string} run
   * @param {string} layer
   */
  named(run, layer) {
    return layer || (this.family(run, layer).members[1] ?? "");
  }

  /**
   * Blocks of a run, cached if nothing has changed.
   * @param {Part} part
   * @param {string} run
   * @param {Pairs} series
   * @param {Omit<Question, "run" | "series">} options
   */
  async blocks(part, run, series, options) {
    const head = this.heads.get(run);
    const lenses = new Map((head?.lenses ?? []).map((lens) => [lens.name, lens]));
    const known = series.filter(([lens, statistic]) =>
      lenses.get(lens)?.statistics.some(({ name }) => name === statistic),
    );
    if (!known.length) return [];
    const stamp = known.map(([name]) => {
      const lens = lenses.get(name);
      return `${lens?.ticks}/${lens?.last_step}/${lens?.layers.length}`;
    });
    const key = JSON.stringify([known, options, stamp, head?.meta.id]);
    const before = this.answers.get(`${part}/${run}`);
    if (before?.key === key) return before.blocks;
    const blocks = await this.source.windows({ run, series: known, ...options });
    this.answers.set(`${part}/${run}`, { key, blocks });
    return blocks;
  }
}

/**
 * @param {ChartSpec[]} specs
 * @returns {Pairs}
 */
function seriesOf(specs) {
  const pairs = specs.flatMap((spec) =>
    spec.curves.flatMap((curve) =>
      statisticsOf(curve).map((statistic) => /** @type {[string, string]} */ ([spec.lens, statistic])),
    ),
  );
  return [...new Map(pairs.map((pair) => [pair.join("/"), pair])).values()];
}
