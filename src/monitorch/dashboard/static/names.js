// What statistics are called, and which of them belong together in a chart. Nothing here reads a name: the parts of a
// statistic are its fields.

/** @import { LayerFacts, LensFacts, StatisticFacts } from "page/data.js" */

export const WHOLE_RUN = "run";
const EXTREMES = "min-max";
const DEVIATIONS = "std";
const FAVOURITES = [
  "Weight Gradient Norm",
  "Parameter Gradient Norm",
  "Gradient Norm",
  "Output Gradient Norm",
  "Weight Norm",
];
const LOSSES = ["Loss", "Loss & Metrics"];
/** Charts whose titles begin so come last, in this order: nearly always there is nothing to see in them. */
const LATE = [
  ["samples per second", "steps per second"],
  ["Warning ", "Non-Finite "],
];
const PARAMETERS = /weight|bias/;
const RANKS = { line: 0, share: 0, edge: 1, count: 2 };

/**
 * The title of a single statistic.
 * @param {StatisticFacts | undefined} statistic
 */
export function title(statistic) {
  return statistic ? [statistic.tag, short(statistic)].filter(Boolean).join(" · ") || statistic.name : "";
}

/**
 * What a statistic is called where its tag is known; empty if that says it all.
 * @param {StatisticFacts} statistic
 */
export function short(statistic) {
  return statistic.label.replaceAll("_", " ");
}

/**
 * What a layer is called: a model that is a single layer has no name.
 * @param {string} name
 */
export function shownName(name) {
  return name || "the model";
}

/**
 * A layer in a sentence: a number alone, as the layers of nn.Sequential have, would be read as one.
 * @param {string} name
 */
export function layerText(name) {
  return /^[\d.]+$/.test(name) ? `layer ${name}` : shownName(name);
}

/** @param {{ tag: string }} plot */
export function isLoss({ tag }) {
  return LOSSES.includes(tag);
}

/**
 * The statistics to choose from for the heat map, by lens: lines first, bands and counts last.
 * @param {LensFacts[]} lenses
 * @returns {[string, [string, string][]][]}
 */
export function menu(lenses) {
  return lenses
    .filter((lens) => lens.name !== WHOLE_RUN)
    .map((lens) => [
      lens.name,
      [...lens.statistics]
        .sort((one, other) => RANKS[one.role] - RANKS[other.role])
        .map((statistic) => [JSON.stringify([lens.name, statistic.name]), title(statistic)]),
    ]);
}

/**
 * What to show first: gradients if there are any.
 * @param {LensFacts[]} lenses
 */
export function favourite(lenses) {
  const all = lenses
    .filter((lens) => lens.name !== WHOLE_RUN)
    .flatMap((lens) => lens.statistics.map((statistic) => ({ lens: lens.name, statistic })));
  const lines = all.filter(({ statistic }) => statistic.role === "line");
  const wanted = FAVOURITES.map((tag) => lines.find(({ statistic }) => statistic.tag.endsWith(tag)));
  const found = wanted.find((line) => line) ?? lines[0] ?? all[0];
  return found ? [found.lens, found.statistic.name] : ["", ""];
}

/**
 * A module and its parameters, which lenses also call layers: the requested one comes first.
 * @typedef {{ module: string, members: string[] }} Family
 */

/**
 * @param {LayerFacts[]} layers
 * @param {string} name
 * @returns {Family}
 */
export function family(layers, name) {
  const module = moduleOf(kindsOf(layers), name);
  const isPart = (/** @type {LayerFacts} */ layer) =>
    !layer.kind && (module ? isInside(layer.name, module) : !layer.name.includes(".") && PARAMETERS.test(layer.name));
  const known = layers.filter((layer) => layer.name === module || isPart(layer)).map((layer) => layer.name);
  return { module, members: [name, ...known.filter((part) => part !== name)] };
}

/** @param {LayerFacts[]} layers */
export function kindsOf(layers) {
  return new Map(layers.map((layer) => [layer.name, layer.kind]));
}

/**
 * The module that a parameter belongs to; any other layer is its own.
 * @param {Map<string, string | null>} kinds
 * @param {string} name
 */
export function moduleOf(kinds, name) {
  const cut = name.lastIndexOf(".");
  const parent = name.slice(0, Math.max(cut, 0));
  const isWeight = PARAMETERS.test(name.slice(Math.max(cut, 0)));
  const isParameter = !kinds.get(name) && (cut > 0 ? kinds.get(parent) || isWeight : kinds.get("") && isWeight);
  return isParameter ? parent : name;
}

/**
 * @param {string} name
 * @param {string} module
 */
function isInside(name, module) {
  return name.startsWith(`${module}.`) && !name.slice(module.length + 1).includes(".");
}

/**
 * A band around a curve: the statistics that are its edges. `isExtreme` if no sample is outside of it; `isGuess` if its
 * edges are computed from a deviation, so that they may be where no sample can be.
 * @typedef {{ low: string, high: string, isExtreme: boolean, isGuess: boolean }} BandSpec
 */

/**
 * A curve of a chart: the statistic that is its line, how far off that may be, and the bands around it. `part` is which
 * parameter of the module it is about; empty if the chart has only one layer.
 * @typedef {{ name: string, layer: string, part: string, line: string, error: string, bands: BandSpec[] }} CurveSpec
 */

/**
 * A chart: statistics of one tag belong together, as curves with bands; `histograms` is the tag, if it has some.
 * @typedef {{
 *   key: string, lens: string, tag: string, title: string, scale: string, limits: [number, number] | null, curves: CurveSpec[],
 *   histograms: string | null,
 * }} ChartSpec
 */

/**
 * All statistics that a curve needs.
 * @param {CurveSpec} curve
 */
export function statisticsOf({ line, bands }) {
  return [...new Set([line, ...bands.flatMap(({ low, high }) => [low, high])])];
}

/**
 * The charts of a family of layers.
 * @param {LensFacts[]} lenses
 * @param {Family} family
 * @returns {ChartSpec[]}
 */
export function charts(lenses, { module, members }) {
  /** @type {Map<string, ChartSpec>} */
  const found = new Map();
  for (const lens of lenses) {
    const known = members.filter((member) => lens.layers.includes(member));
    for (const layer of known) {
      const part = known.length > 1 ? layer.slice(module.length + 1) : "";
      for (const statistics of grouped(lens.statistics)) {
        const chart = chartOf(found, lens, statistics[0]);
        chart.curves.push(...curvesOf(statistics, layer, part));
      }
    }
  }
  const lateness = (/** @type {ChartSpec} */ { title }) =>
    LATE.findIndex((starts) => starts.some((start) => title.startsWith(start)));
  return [...found.values()].sort((one, other) => lateness(one) - lateness(other));
}

/**
 * The statistics of each curve of each tag, without counts.
 * @param {StatisticFacts[]} statistics
 */
function grouped(statistics) {
  /** @type {Map<string, StatisticFacts[]>} */
  const groups = new Map();
  for (const statistic of statistics) {
    if (statistic.role === "count") continue;
    const key = JSON.stringify([statistic.tag || statistic.name, statistic.curve]);
    groups.set(key, [...(groups.get(key) ?? []), statistic]);
  }
  return groups.values();
}

/**
 * @param {Map<string, ChartSpec>} found
 * @param {LensFacts} lens
 * @param {StatisticFacts} statistic
 */
function chartOf(found, lens, { tag, curve, name, scale, limits }) {
  const isAlone = tag === "Logged"; // learning rate and speed have nothing in common but the lens
  const key = `${lens.name}/${tag || name}${isAlone ? `/${curve}` : ""}`;
  const chart = found.get(key) ?? {
    ...{ key, lens: lens.name, tag, title: isAlone ? curve : tag || name },
    ...{ scale, limits, curves: [], histograms: lens.histograms.includes(tag) ? tag : null },
  };
  found.set(key, chart);
  return chart;
}

/**
 * The curves of statistics with the same samples: each line is one. The bands are around the one that needs no name of
 * its own, such as the mean, else around the first.
 * @param {StatisticFacts[]} statistics
 * @param {string} layer
 * @param {string} part
 * @returns {CurveSpec[]}
 */
function curvesOf(statistics, layer, part) {
  const edges = statistics.filter(({ role }) => role === "edge");
  const bands = edges
    .filter(({ side }) => side === "low")
    .flatMap((low) => {
      const high = edges.find(({ band, side }) => side === "high" && band === low.band);
      const isExtreme = low.band === EXTREMES;
      return high ? [{ low: low.name, high: high.name, isExtreme, isGuess: low.band === DEVIATIONS }] : [];
    });
  const known = bands.flatMap(({ low, high }) => [low, high]);
  const others = statistics.filter(({ name }) => !known.includes(name));
  const lines = others.length ? others : statistics.slice(0, 1);
  const main = lines.find(({ label, curve }) => label === curve) ?? lines[0];
  const called = (/** @type {StatisticFacts} */ { label, curve, line }) => (lines.length > 1 ? [curve, line] : [label]);
  return lines.map((line) => ({
    ...{ name: [part, ...called(line)].filter(Boolean).join(" "), layer, part, line: line.name },
    error: line.error_text,
    bands: line === main ? bands : [],
  }));
}

/**
 * A search as a test of names; what is not a regular expression is searched as plain text.
 * @param {string} search
 */
export function matcher(search) {
  if (!search) return { test: () => true, isValid: true };
  try {
    const expression = new RegExp(search, "iu");
    return { test: (/** @type {string} */ name) => expression.test(name), isValid: true };
  } catch {
    const text = search.toLowerCase();
    return { test: (/** @type {string} */ name) => name.toLowerCase().includes(text), isValid: false };
  }
}
