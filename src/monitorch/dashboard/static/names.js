// The names of statistics: "<tag>/<curve> <line>", such as "Loss/train_loss mean".

/** @import { LayerFacts, LensFacts, StatisticFacts } from "page/data.js" */

export const WHOLE_RUN = "run";
const LINES = /^(.*?)\s*(mean|median|value|[-+−]σ|Q1|Q3|min|max|nonfinite)$/;
const CENTRES = ["mean", "value", "median"];
const FAVOURITES = [
  "Weight Gradient Norm/mean",
  "Parameter Gradient Norm/mean",
  "Gradient Norm/mean",
  "Output Gradient Norm/mean",
  "Weight Norm/mean",
];

/** @param {string} statistic */
export function parts(statistic) {
  const cut = statistic.lastIndexOf("/");
  const [tag, rest] = cut < 0 ? ["", statistic] : [statistic.slice(0, cut), statistic.slice(cut + 1)];
  const found = LINES.exec(rest);
  return { tag: tag || rest, curve: found ? found[1] : rest, line: found ? found[2].replace("−", "-") : "value" };
}

/**
 * The title of a single statistic.
 * @param {string} statistic
 */
export function title(statistic) {
  const { tag, curve, line } = parts(statistic);
  const name = curve && curve !== tag ? `${tag} · ${curve.replaceAll("_", " ")}` : tag;
  return line === "value" || line === "mean" ? name : `${name} ${line}`;
}

/**
 * The statistics to choose from for the heat map, by lens: means first, bands and counts last.
 * @param {LensFacts[]} lenses
 * @returns {[string, [string, string][]][]}
 */
export function menu(lenses) {
  const rank = (/** @type {StatisticFacts} */ statistic) => {
    const { line } = parts(statistic.name);
    return CENTRES.includes(line) ? 0 : line === "nonfinite" ? 2 : 1;
  };
  return lenses
    .filter((lens) => lens.name !== WHOLE_RUN)
    .map((lens) => [
      lens.name,
      [...lens.statistics]
        .sort((one, other) => rank(one) - rank(other))
        .map((statistic) => [JSON.stringify([lens.name, statistic.name]), title(statistic.name)]),
    ]);
}

/**
 * What to show first: gradients if there are any.
 * @param {LensFacts[]} lenses
 */
export function favourite(lenses) {
  const all = lenses
    .filter((lens) => lens.name !== WHOLE_RUN)
    .flatMap((lens) => lens.statistics.map((statistic) => [lens.name, statistic.name]));
  for (const ending of FAVOURITES) {
    const found = all.find(([, name]) => name === ending || name.endsWith(ending));
    if (found) return found;
  }
  return all[0] ?? ["", ""];
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
  const kinds = new Map(layers.map((layer) => [layer.name, layer.kind]));
  const cut = name.lastIndexOf(".");
  const parent = name.slice(0, Math.max(cut, 0));
  const isParameter = cut > 0 && !kinds.get(name) && (kinds.get(parent) || /weight|bias/.test(name.slice(cut)));
  const module = isParameter ? parent : name;
  const isPart = (/** @type {LayerFacts} */ layer) =>
    !layer.kind && layer.name.startsWith(`${module}.`) && !layer.name.slice(module.length + 1).includes(".");
  const known = layers.filter((layer) => layer.name === module || isPart(layer)).map((layer) => layer.name);
  return { module, members: [name, ...known.filter((part) => part !== name)] };
}

/**
 * A curve of a chart: `lines` are the statistics that belong to it, by what they are, such as mean, min or max.
 * @typedef {{ name: string, layer: string, lines: Record<string, string> }} CurveSpec
 */

/**
 * A chart: statistics of one tag belong together, as curves with bands.
 * @typedef {{
 *   key: string, lens: string, title: string, scale: string, limits: [number, number] | null, curves: CurveSpec[],
 * }} ChartSpec
 */

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
      for (const statistic of lens.statistics)
        addStatistic(found, lens, statistic, layer, known.length > 1 ? layer.slice(module.length + 1) : "");
    }
  }
  const all = [...found.values()].map((chart) => ({ ...chart, curves: chart.curves.flatMap(withMedian) }));
  const isLate = (/** @type {ChartSpec} */ chart) => chart.title.startsWith("Warning ");
  return [...all.filter((chart) => !isLate(chart)), ...all.filter(isLate)];
}

/**
 * @param {Map<string, ChartSpec>} found
 * @param {LensFacts} lens
 * @param {StatisticFacts} statistic
 * @param {string} layer
 * @param {string} part
 */
function addStatistic(found, lens, statistic, layer, part) {
  const { tag, curve, line } = parts(statistic.name);
  if (line === "nonfinite") return;
  const isAlone = tag === "Logged"; // learning rate and speed have nothing in common but the lens
  const key = `${lens.name}/${tag}${isAlone ? `/${curve}` : ""}`;
  const chart = found.get(key) ?? {
    key,
    lens: lens.name,
    title: isAlone ? curve : tag,
    scale: statistic.scale,
    limits: statistic.limits,
    curves: [],
  };
  found.set(key, chart);
  const name = [part, curve].filter(Boolean).join(" ");
  const known = chart.curves.find((candidate) => candidate.layer === layer && candidate.name === name);
  if (known) known.lines[line] = statistic.name;
  else chart.curves.push({ name, layer, lines: { [line]: statistic.name } });
}

/**
 * A median beside a mean is its own curve.
 * @param {CurveSpec} curve
 * @returns {CurveSpec[]}
 */
function withMedian(curve) {
  const { median, ...rest } = curve.lines;
  if (!median || !rest.mean) return [curve];
  return [
    { ...curve, lines: rest },
    { ...curve, name: [curve.name, "median"].filter(Boolean).join(" "), lines: { median } },
  ];
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
