// The rows of the heat map: layers as a tree, or sorted, with pins on top.

const SMALL_GROUP = 2;
/** So many of the worst layers have rows of their own, and the groups of all others take about so many rows. */
export const WORST_ROWS = 40;
const GROUP_ROWS = 60;
const DEEPEST = 8;

/**
 * A row covers the layers `members`, by their index in the block; an open group covers none.
 * @typedef {{
 *   name: string, label: string, depth: number, members: number[], isGroup: boolean, isPinned?: boolean,
 *   isClosed?: boolean, size?: number,
 * }} Row
 */

/** @typedef {{ name: string, index: number }} Place */

/** @typedef {{ children: Map<string, Branch>, layer: Place | null }} Branch */

/** @typedef {{ label: string, start: number, end: number }} Bracket */

/** @typedef {(group: string, depth: number) => boolean} Fold  whether a group is closed */

/**
 * Rows to show, each with the layers it covers. With `most`, groups are closed, the deepest first, until there are about
 * so few rows; `closed` and `opened` are the groups that somebody has closed and opened.
 * @param {{
 *   layers: string[], matches: (name: string) => boolean, pins: string[], closed: string[], opened: string[],
 *   sort: "model" | "worst" | "name", place: (name: string) => number, withGroups: boolean, most?: number,
 * }} options
 */
export function build({ layers, matches, pins, closed, opened, sort, place, withGroups, most = Infinity }) {
  const pinnedNames = new Set(pins);
  const shown = layers
    .map((name, index) => ({ name, index }))
    .filter(({ name }) => matches(name) || pinnedNames.has(name));
  const pinned = shown.filter(({ name }) => pinnedNames.has(name)).map((layer) => leaf(layer, layer.name, 0, true));
  const rest = shown.filter(({ name }) => !pinnedNames.has(name));
  if (sort === "model") return [...pinned, ...treeRows(rest, { closed, opened, withGroups, most })];
  const plain = (/** @type {Place} */ layer) => leaf(layer, layer.name, 0, false);
  if (sort === "name") {
    rest.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
    return [...pinned, ...rest.map(plain)];
  }
  const ordered = [...rest].sort((one, other) => place(one.name) - place(other.name) || one.index - other.index);
  if (!isFolded(ordered.length)) return [...pinned, ...ordered.map(plain)];
  const worst = ordered.slice(0, WORST_ROWS);
  const others = new Set(worst);
  const groups = treeRows(
    rest.filter((layer) => !others.has(layer)),
    { closed, opened, withGroups: true, most: GROUP_ROWS },
  );
  return [...pinned, ...worst.map(plain), ...groups];
}

/**
 * Whether only the worst of so many layers have rows of their own.
 * @param {number} layers
 */
export function isFolded(layers) {
  return layers > WORST_ROWS + GROUP_ROWS;
}

/**
 * @param {Place} layer
 * @param {string} label
 * @param {number} depth
 * @param {boolean} isPinned
 * @returns {Row}
 */
function leaf(layer, label, depth, isPinned) {
  return { name: layer.name, label, depth, members: [layer.index], isGroup: false, isPinned };
}

/**
 * @param {Place[]} layers
 * @param {{ closed: string[], opened: string[], withGroups: boolean, most: number }} options
 */
function treeRows(layers, { closed, opened, withGroups, most }) {
  const root = grow(layers);
  const rows = (/** @type {Fold} */ fold) => {
    /** @type {Row[]} */
    const found = [];
    walk(root, { prefix: "", before: "", depth: 0 }, found, fold, withGroups);
    return found;
  };
  let deepest = DEEPEST;
  while (most < Infinity && deepest > 0 && rows((_, depth) => depth >= deepest).length > most) deepest--;
  const isDeep = (/** @type {number} */ depth) => most < Infinity && depth >= deepest;
  return rows((group, depth) => closed.includes(group) || (isDeep(depth) && !opened.includes(group)));
}

/**
 * Layers as a tree by the parts of their names; an only child is merged with its parent.
 * @param {Place[]} layers
 */
function grow(layers) {
  const branch = () => /** @type {Branch} */ ({ children: new Map(), layer: null });
  const root = branch();
  for (const layer of layers) {
    let node = root;
    for (const part of layer.name.split(".")) {
      const next = node.children.get(part) ?? branch();
      node.children.set(part, next);
      node = next;
    }
    node.layer = layer;
  }
  return root;
}

/**
 * Add the rows below a node; small groups have no own row, so their names go `before` those inside.
 * @param {Branch} node
 * @param {{ prefix: string, before: string, depth: number }} where
 * @param {Row[]} rows
 * @param {Fold} fold
 * @param {boolean} withGroups
 */
function walk(node, { prefix, before, depth }, rows, fold, withGroups) {
  for (const [part, child] of node.children) {
    let [label, inner] = [part, child];
    while (!inner.layer && inner.children.size === 1) {
      const [[next, only]] = inner.children;
      [label, inner] = [`${label}.${next}`, only];
    }
    const name = prefix + label;
    const below = inner.children.size;
    if (inner.layer) rows.push(leaf(inner.layer, before + label, depth, false));
    if (!below) continue;
    const inside = leaves(inner);
    const isClosed = fold(name, depth);
    if (inside.length <= SMALL_GROUP && !isClosed) {
      walk(inner, { prefix: `${name}.`, before: `${before}${label}.`, depth }, rows, fold, withGroups);
      continue;
    }
    if (withGroups || isClosed) {
      rows.push({
        name,
        label: before + label,
        depth,
        members: isClosed ? inside : [],
        isGroup: true,
        isClosed,
        size: inside.length,
      });
    }
    if (!isClosed) walk(inner, { prefix: `${name}.`, before: "", depth: depth + 1 }, rows, fold, withGroups);
  }
}

/**
 * @param {Branch} node
 * @returns {number[]}
 */
function leaves(node) {
  const below = [...node.children.values()].flatMap(leaves);
  return node.layer ? [node.layer.index, ...below] : below;
}

/**
 * Neighbours that share the beginning of their names, as brackets beside rows too thin for labels.
 * @param {Row[]} rows
 * @param {number} rowHeight
 * @param {number} smallest
 */
export function brackets(rows, rowHeight, smallest) {
  const runs = [1, 2, 3, 4].map((depth) => sharing(rows, depth));
  /** @type {Bracket[]} */
  const found = [];
  for (let start = 0; start < rows.length; ) {
    const size = (/** @type {number} */ depth) =>
      (runs[depth - 1][start].end - runs[depth - 1][start].start) * rowHeight;
    let depth = 1;
    // deeper while there is room for a name, or while a bracket would say too little
    while (
      depth < 4 &&
      (size(depth + 1) >= 3 * smallest || (size(depth + 1) >= smallest && size(depth) >= 24 * smallest))
    )
      depth++;
    const { end } = runs[depth - 1][start];
    found.push({ label: rows[start].isPinned ? "pinned" : headOf(rows[start].name, depth), start, end });
    start = end;
  }
  return found;
}

/**
 * For each row, the range of rows that share this many parts of its name.
 * @param {Row[]} rows
 * @param {number} depth
 */
function sharing(rows, depth) {
  let run = { start: 0, end: 0 };
  /** @type {string | null} */
  let before = null;
  return rows.map((row, place) => {
    const head = row.isPinned ? "" : headOf(row.name, depth);
    if (head !== before) run = { start: place, end: place };
    before = head;
    run.end = place + 1;
    return run;
  });
}

/**
 * @param {string} name
 * @param {number} depth
 */
function headOf(name, depth) {
  return name.split(".").slice(0, depth).join(".");
}
