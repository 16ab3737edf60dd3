// The rows of the heat map: layers as a tree, or sorted, with pins on top.

const SMALL_GROUP = 2;

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

/**
 * Rows to show, each with the layers it covers.
 * @param {{
 *   layers: string[], matches: (name: string) => boolean, pins: string[], closed: string[],
 *   sort: "model" | "worst" | "name", place: (name: string) => number, withGroups: boolean,
 * }} options
 */
export function build({ layers, matches, pins, closed, sort, place, withGroups }) {
  const pinnedNames = new Set(pins);
  const shown = layers
    .map((name, index) => ({ name, index }))
    .filter(({ name }) => matches(name) || pinnedNames.has(name));
  const pinned = shown.filter(({ name }) => pinnedNames.has(name)).map((layer) => leaf(layer, layer.name, 0, true));
  const rest = shown.filter(({ name }) => !pinnedNames.has(name));
  if (sort === "model") return [...pinned, ...treeRows(rest, closed, withGroups)];
  const order =
    sort === "name"
      ? (/** @type {Place} */ one, /** @type {Place} */ other) =>
          one.name.localeCompare(other.name, "en", { numeric: true })
      : (/** @type {Place} */ one, /** @type {Place} */ other) =>
          place(one.name) - place(other.name) || one.index - other.index;
  return [...pinned, ...rest.sort(order).map((layer) => leaf(layer, layer.name, 0, false))];
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
 * @param {string[]} closed
 * @param {boolean} withGroups
 */
function treeRows(layers, closed, withGroups) {
  /** @type {Row[]} */
  const rows = [];
  walk(grow(layers), { prefix: "", before: "", depth: 0 }, rows, closed, withGroups);
  return rows;
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
 * @param {string[]} closed
 * @param {boolean} withGroups
 */
function walk(node, { prefix, before, depth }, rows, closed, withGroups) {
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
    const isClosed = closed.includes(name);
    if (inside.length <= SMALL_GROUP && !isClosed) {
      walk(inner, { prefix: `${name}.`, before: `${before}${label}.`, depth }, rows, closed, withGroups);
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
    if (!isClosed) walk(inner, { prefix: `${name}.`, before: "", depth: depth + 1 }, rows, closed, withGroups);
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
