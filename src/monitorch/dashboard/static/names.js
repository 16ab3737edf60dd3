// What the names of statistics say: "<tag>/<curve> <line>", such as "Loss/train_loss mean".

export const WHOLE_RUN = "run";
const LINES = /^(.*?)\s*(mean|value|[-+−]σ|min|max|nonfinite)$/;
const FAVOURITES = [
  "Weight Gradient Norm/mean",
  "Parameter Gradient Norm/mean",
  "Gradient Norm/mean",
  "Output Gradient Norm/mean",
  "Weight Norm/mean",
];

export function parts(statistic) {
  const cut = statistic.lastIndexOf("/");
  const [tag, rest] = cut < 0 ? ["", statistic] : [statistic.slice(0, cut), statistic.slice(cut + 1)];
  const found = LINES.exec(rest);
  return { tag: tag || rest, curve: found ? found[1] : rest, line: found ? found[2].replace("−", "-") : "value" };
}

/** What a statistic is called on its own. */
export function title(statistic) {
  const { tag, curve, line } = parts(statistic);
  const name = curve && curve !== tag ? `${tag} · ${curve.replaceAll("_", " ")}` : tag;
  return line === "value" || line === "mean" ? name : `${name} ${line}`;
}

/** The statistics to choose from for the heat map, by lens: means first, bands and counts last. */
export function menu(lenses) {
  const rank = (statistic) => {
    const { line } = parts(statistic.name);
    return line === "value" || line === "mean" ? 0 : line === "nonfinite" ? 2 : 1;
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

/** What to show first: gradients if there are any. */
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

/** A module and its parameters, which lenses call layers as well: whichever is asked for comes first. */
export function family(layers, name) {
  const kinds = new Map(layers.map((layer) => [layer.name, layer.kind]));
  const cut = name.lastIndexOf(".");
  const parent = name.slice(0, Math.max(cut, 0));
  const isParameter = cut > 0 && !kinds.get(name) && (kinds.get(parent) || /weight|bias/.test(name.slice(cut)));
  const module = isParameter ? parent : name;
  const isPart = (layer) =>
    !layer.kind && layer.name.startsWith(`${module}.`) && !layer.name.slice(module.length + 1).includes(".");
  const parts = layers.filter((layer) => layer.name === module || isPart(layer)).map((layer) => layer.name);
  return { module, members: [name, ...parts.filter((part) => part !== name)] };
}

/** The charts of a family of layers: statistics of one tag belong together, as curves with bands. */
export function charts(lenses, { module, members }) {
  const found = new Map();
  for (const lens of lenses) {
    const known = members.filter((member) => lens.layers.includes(member));
    for (const layer of known) {
      for (const statistic of lens.statistics)
        addStatistic(found, lens, statistic, layer, known.length > 1 ? layer.slice(module.length + 1) : "");
    }
  }
  const all = [...found.values()].map((chart) => ({ ...chart, curves: [...chart.curves.values()] }));
  const isLate = (chart) => chart.title.startsWith("Warning ");
  return [...all.filter((chart) => !isLate(chart)), ...all.filter(isLate)];
}

function addStatistic(found, lens, statistic, layer, part) {
  const { tag, curve, line } = parts(statistic.name);
  if (line === "nonfinite") return;
  const isAlone = tag === "Logged"; // learning rate and speed have nothing in common but the lens
  const key = `${lens.name}/${tag}${isAlone ? `/${curve}` : ""}`;
  if (!found.has(key)) {
    found.set(key, {
      key,
      lens: lens.name,
      title: isAlone ? curve : tag,
      scale: statistic.scale,
      limits: statistic.limits,
      curves: new Map(),
    });
  }
  const { curves } = found.get(key);
  const name = [part, curve].filter(Boolean).join(" ");
  if (!curves.has(`${layer}/${curve}`)) curves.set(`${layer}/${curve}`, { name, layer, lines: {} });
  curves.get(`${layer}/${curve}`).lines[line] = statistic.name;
}

/** A search as a test of names; what is no regular expression is taken letter by letter. */
export function matcher(search) {
  if (!search) return { test: () => true, isValid: true };
  try {
    const expression = new RegExp(search, "iu");
    return { test: (name) => expression.test(name), isValid: true };
  } catch {
    const text = search.toLowerCase();
    return { test: (name) => name.toLowerCase().includes(text), isValid: false };
  }
}
