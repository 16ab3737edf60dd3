// Names beside the rows. Only visible ones are in the page, so a thousand layers cost no more than forty.

import { contextOf, element, icon } from "page/dom.js";
import { shownName } from "page/names.js";
import { shortNames } from "page/text.js";

/** @import { HeatMap } from "page/heat_map.js" */
/** @import { Bracket, Row } from "page/rows.js" */

const INDENT = 12;
const PADDING = 8;
/** What a label has beside its name: room on its right, a chevron, a pin, a mark of trouble. */
const PIXELS = { right: 6, chevron: 14, pin: 21, dot: 12, gap: 5 };
/** A name that would be cut shorter is left to the style sheet. */
const SHORTEST = 6;
/** The height of a name where not all rows have one. */
const SPARSE_HEIGHT = 13;
const LAST_PARTS = /[^.]*(\.(weight|bias)[^.]*)?$/;

/**
 * Write the labels of the rows from `first` to `end`.
 * @param {HeatMap} heat
 * @param {number} first
 * @param {number} end
 */
export function fillLabels(heat, first, end) {
  const nodes = heat.brackets ? bracketLabels(heat, heat.brackets) : [];
  const stride = Math.max(Math.ceil(11 / heat.rowHeight), 1);
  if (!heat.brackets) {
    const texts = labelTexts(heat, stride > 1);
    for (const row of labelled(heat, first, end, stride)) nodes.push(rowLabel(heat, row, texts[row], stride > 1));
  }
  const chosen = heat.model?.layers.indexOf(heat.chosen) ?? -1;
  const selected = heat.rows.findIndex((row) => row.members.includes(chosen)); // or the closed group that it is in
  if (selected >= 0) nodes.push(marker(heat, selected));
  heat.gutter.replaceChildren(...nodes);
}

/**
 * The rows that have labels where there is room for every so many only: those with trouble first.
 * @param {HeatMap} heat
 * @param {number} first
 * @param {number} end
 * @param {number} stride
 */
function labelled(heat, first, end, stride) {
  const all = Array.from({ length: end - first }, (_, index) => first + index);
  if (stride === 1) return all;
  const lowest = Math.max(heat.rows.length - Math.ceil(SPARSE_HEIGHT / heat.rowHeight), 0); // below it a name is cut off
  /** @type {Map<number, number>} Labelled rows, by where their names begin. */
  const found = new Map();
  const label = (/** @type {number} */ row) => {
    const start = Math.min(row, lowest);
    for (let near = start - stride + 1; near < start + stride; near++) if (found.has(near)) return;
    found.set(start, row);
  };
  for (const row of all) if (heat.toneOf(heat.rows[row])) label(row);
  for (const row of all) if (row % stride === 0) label(row);
  return [...found.values()].sort((one, other) => one - other);
}

/** @type {WeakMap<Row[], { key: string, texts: string[] }>} */
const known = new WeakMap();

/**
 * The names of all rows, those that are too long cut in the middle: no two of them look the same.
 * @param {HeatMap} heat
 * @param {boolean} isSparse
 */
function labelTexts(heat, isSparse) {
  const width = heat.gutter.clientWidth;
  const key = `${width} ${isSparse} ${heat.app.healthStamp}`;
  const before = known.get(heat.rows);
  if (before?.key === key) return before.texts;
  const letter = letterWidth(heat.gutter);
  const texts = heat.rows.map((row) => (row.isPinned || !isTree(heat) ? shownName(row.name) : shownName(row.label)));
  /** @type {Map<number, number[]>} */
  const places = new Map();
  heat.rows.forEach((row, place) => {
    const size = row.isClosed ? letter * String(row.size).length + PIXELS.gap : 0;
    const beside = row.isGroup ? PIXELS.chevron + size : isSparse ? 0 : PIXELS.pin;
    const mark = heat.toneOf(row) ? PIXELS.dot : 0;
    const room = Math.floor((width - PIXELS.right - indent(heat, row) - beside - mark) / letter);
    const others = places.get(room);
    if (others) others.push(place);
    else places.set(room, [place]);
  });
  for (const [room, rows] of places) {
    const short = shortNames(
      rows.map((place) => texts[place]),
      Math.max(room, SHORTEST),
    );
    rows.forEach((place, index) => {
      texts[place] = short[index];
    });
  }
  known.set(heat.rows, { key, texts });
  return texts;
}

/** @param {HTMLElement} node */
function letterWidth(node) {
  const context = contextOf(document.createElement("canvas"));
  const { fontSize, fontFamily } = getComputedStyle(node);
  context.font = `${fontSize} ${fontFamily}`;
  return context.measureText("0").width || 7;
}

/** @param {HeatMap} heat */
function isTree(heat) {
  return heat.app.state.sort === "model" && !heat.isCompact;
}

/**
 * @param {HeatMap} heat
 * @param {Row} row
 */
function indent(heat, row) {
  return PADDING + (isTree(heat) ? row.depth * INDENT : 0);
}

/**
 * @param {HTMLElement} node
 * @param {HeatMap} heat
 * @param {number} start
 * @param {number} height
 */
function place(node, heat, start, height) {
  // a name may be taller than its row, but not the last one: its lower half would be cut off
  const top = Math.min(start * heat.rowHeight, Math.max(heat.rows.length * heat.rowHeight - height, 0));
  node.style.top = `${top - heat.view.scrollTop}px`;
  node.style.height = `${height}px`;
  return node;
}

/**
 * @param {HeatMap} heat
 * @param {number} index
 * @param {string} text
 * @param {boolean} isSparse
 */
function rowLabel(heat, index, text, isSparse) {
  const row = heat.rows[index];
  const isSelected = !row.isGroup && row.name === heat.chosen;
  const looks = [
    ["is-group", row.isGroup],
    ["is-pinned", row.isPinned],
    ["is-selected", isSelected],
  ];
  const node = element("div", {
    class: ["label", ...looks.filter(([, isSo]) => isSo).map(([look]) => look)].join(" "),
    role: "treeitem",
    "aria-level": String(row.depth + 1),
    "aria-selected": String(isSelected),
    title: shownName(row.name),
    "aria-expanded": row.isGroup ? String(!row.isClosed) : null,
    "aria-posinset": String(index + 1),
    "aria-setsize": String(heat.rows.length),
    onclick: () => heat.pointer.choose(row),
  });
  node.style.paddingLeft = `${indent(heat, row)}px`;
  if (row.isGroup) node.append(element("span", { class: "chevron", text: row.isClosed ? "▸" : "▾" }));
  node.append(nameNode(text));
  if (row.isGroup && row.isClosed) node.append(element("span", { class: "muted small", text: String(row.size) }));
  const tone = heat.toneOf(row);
  if (tone) node.append(element("span", { class: "dot", "data-tone": tone }));
  if (!row.isGroup && !isSparse) node.append(pinButton(heat, row));
  return place(node, heat, index, isSparse ? SPARSE_HEIGHT : heat.rowHeight);
}

/**
 * Without a tree, the end of a name says most: its last part, with the module's if that is a parameter.
 * @param {string} text
 */
function nameNode(text) {
  const cut = text.search(LAST_PARTS);
  return element(
    "bdi",
    { class: "name" },
    element("span", { class: "muted", text: text.slice(0, cut) }),
    text.slice(cut),
  );
}

/**
 * @param {HeatMap} heat
 * @param {Row} row
 */
function pinButton(heat, row) {
  const label = row.isPinned ? `Unpin ${row.name}` : `Pin ${row.name}`;
  return element(
    "button",
    {
      type: "button",
      class: "pin",
      title: row.isPinned ? "Unpin" : "Pin to the top",
      "aria-label": label,
      tabindex: "-1",
      onclick: (event) => {
        event.stopPropagation();
        heat.app.state.toggle("pins", row.name);
      },
    },
    icon("pin"),
  );
}

/**
 * A line for each bracket, with a name where there is room for one.
 * @param {HeatMap} heat
 * @param {Bracket[]} brackets
 */
function bracketLabels(heat, brackets) {
  let free = -Infinity;
  const bottom = heat.rows.length * heat.rowHeight;
  return brackets.flatMap((bracket) => {
    const middle = ((bracket.start + bracket.end) / 2) * heat.rowHeight;
    const hasName = middle - 7 >= Math.max(free, -1) && middle + 7 <= bottom + 1;
    if (hasName) free = middle + 7;
    return bracketLabel(heat, bracket, hasName) ?? [];
  });
}

/**
 * @param {HeatMap} heat
 * @param {Bracket} bracket
 * @param {boolean} hasName
 */
function bracketLabel(heat, { label, start, end }, hasName) {
  const height = (end - start) * heat.rowHeight;
  const top = start * heat.rowHeight - heat.view.scrollTop;
  if (top + height < 0 || top > heat.height) return null;
  const node = element(
    "div",
    {
      class: "bracket",
      title: `${label}: ${end - start} layers`,
      role: "treeitem",
      onclick: () => heat.pointer.chooseBracket(label, start),
    },
    hasName ? element("bdi", { class: "name", text: label }) : "",
  );
  return place(node, heat, start, height);
}

/**
 * @param {HeatMap} heat
 * @param {number} row
 */
function marker(heat, row) {
  return place(
    element("div", { class: "selected-row", "aria-hidden": "true" }),
    heat,
    row,
    Math.max(heat.rowHeight, 2),
  );
}
