// What the page knows of its runs. Numbers are asked for again only when they, or the question, are others.

import { charts, family, favourite, WHOLE_RUN } from "page/names.js";

const RUNS_MILLISECONDS = 5000;

export class Data {
  constructor(source) {
    this.source = source;
    this.runs = [];
    this.heads = new Map();
    this.events = new Map();
    this.answers = new Map();
  }

  /** The list of runs, the heads of those that are shown; drops names that do not exist. */
  async names(state) {
    const isKnown = this.runs.some((run) => run.name === state.run);
    if (!isKnown) await this.list();
    else if (performance.now() - this.runsAt > RUNS_MILLISECONDS) this.list().catch(() => {}); // nobody waits for it
    const known = new Set(this.runs.map((run) => run.name));
    const run = known.has(state.run)
      ? state.run
      : (this.runs.find((candidate) => candidate.status !== "damaged")?.name ?? "");
    const compare = state.compare.filter((name) => known.has(name) && name !== run);
    await Promise.all([run, ...compare].filter(Boolean).map((name) => this.head(name)));
    return { run, compare };
  }

  async list() {
    this.runsAt = performance.now();
    this.runs = await this.source.runs();
  }

  async head(name) {
    const head = await this.source.head(name);
    head.at = performance.now();
    this.heads.set(name, head);
  }

  /** Events change only when something was stored, which the heartbeat tells. */
  async eventsOf(name) {
    const { heartbeat, id } = this.heads.get(name).meta;
    const stamp = `${id}/${heartbeat}`;
    const before = this.events.get(name);
    if (before?.stamp !== stamp) this.events.set(name, { stamp, list: await this.source.events(name) });
  }

  /** The statistic to show: the chosen one if the run has it. */
  statistic(run, state) {
    const lenses = this.heads.get(run)?.lenses ?? [];
    const lens = lenses.find((candidate) => candidate.name === state.lens);
    if (lens?.statistics.some((statistic) => statistic.name === state.statistic))
      return { lens: state.lens, statistic: state.statistic };
    const [name, statistic] = favourite(lenses);
    return { lens: name, statistic };
  }

  /** All numbers that are on the page; calls back for each part when it is there. */
  async numbers(state, sizes, onpart) {
    const names = [state.run, ...state.compare];
    const span = { first: state.first, last: state.last };
    const heatSeries = state.lens ? [[state.lens, state.statistic]] : [];
    const specs = this.specs(state.run, state.layer);
    const { members } = this.family(state.run, state.layer);
    const wanted = {
      heat: names
        .slice(0, state.difference ? 2 : 1)
        .map((run) => this.blocks("heat", run, heatSeries, { ...span, resolution: sizes.heat, planes: [state.cell] })),
      strip: names.map((run) =>
        this.blocks("strip", run, seriesOf(this.specs(run, WHOLE_RUN)), {
          ...span,
          layers: [WHOLE_RUN],
          resolution: sizes.chart,
        }),
      ),
      layer:
        state.tab !== "layer" || !state.layer
          ? []
          : names.map((run) =>
              this.blocks("layer", run, seriesOf(specs), { ...span, layers: members, resolution: sizes.chart }),
            ),
      total: state.tab !== "table" ? [] : [this.blocks("total", state.run, heatSeries, { ...span, resolution: 1 })],
    };
    const parts = Object.entries(wanted).map(async ([part, blocks]) => onpart(part, await Promise.all(blocks)));
    await Promise.all(parts);
    await this.eventsOf(state.run); // not at once: numbers would come later
  }

  /** The charts of a layer, the one of the chosen statistic first. */
  specs(run, layer, state = null) {
    const all = charts(this.heads.get(run)?.lenses ?? [], this.family(run, layer));
    const isChosen = (spec) =>
      spec.lens === state?.lens && spec.curves.some((curve) => Object.values(curve.lines).includes(state.statistic));
    return [...all.filter(isChosen), ...all.filter((spec) => !isChosen(spec))];
  }

  family(run, layer) {
    return layer === WHOLE_RUN ? { module: layer, members: [layer] } : family(this.heads.get(run)?.layers ?? [], layer);
  }

  /** Blocks of a run, from before if nothing has changed. */
  async blocks(part, run, series, options) {
    const lenses = new Map((this.heads.get(run)?.lenses ?? []).map((lens) => [lens.name, lens]));
    const known = series.filter(([lens, statistic]) =>
      lenses.get(lens)?.statistics.some(({ name }) => name === statistic),
    );
    if (!known.length) return [];
    const stamp = known
      .map(([lens]) => `${lenses.get(lens).ticks}/${lenses.get(lens).last_step}/${lenses.get(lens).layers.length}`)
      .join();
    const key = JSON.stringify([known, options, stamp, this.heads.get(run).meta.id]);
    const before = this.answers.get(`${part}/${run}`);
    if (before?.key === key) return before.blocks;
    const blocks = await this.source.windows({ run, series: known, ...options });
    this.answers.set(`${part}/${run}`, { key, blocks });
    return blocks;
  }
}

function seriesOf(specs) {
  const pairs = specs.flatMap((spec) =>
    spec.curves.flatMap((curve) => Object.values(curve.lines).map((statistic) => [spec.lens, statistic])),
  );
  return [...new Map(pairs.map((pair) => [pair.join("/"), pair])).values()];
}
