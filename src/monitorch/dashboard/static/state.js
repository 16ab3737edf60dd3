// All choices on the page, kept in the URL, so that a link shows what its sender sees.

import { STRONGEST } from "page/curves.js";

/** @import { AxisKind } from "page/format.js" */

/** What there is to choose from; the first is what is usual. */
export const CHOICES = {
  sort: /** @type {("model" | "worst" | "name")[]} */ (["model", "worst", "name"]),
  cell: /** @type {("maximum" | "mean" | "minimum")[]} */ (["maximum", "mean", "minimum"]),
  colour: /** @type {("auto" | "linear" | "log")[]} */ (["auto", "linear", "log"]),
  map: /** @type {("viridis" | "cividis")[]} */ (["viridis", "cividis"]),
  rows: /** @type {("fit" | "read")[]} */ (["fit", "read"]),
  x: /** @type {AxisKind[]} */ (["step", "epoch", "time"]),
  tab: /** @type {("layer" | "alerts" | "runs" | "table")[]} */ (["layer", "alerts", "runs", "table"]),
  findings: /** @type {("shown" | "hidden")[]} */ (["shown", "hidden"]),
  theme: /** @type {("system" | "light" | "dark")[]} */ (["system", "light", "dark"]),
};

/** Everything, with what is usual. */
class Choices extends EventTarget {
  run = "";
  /** @type {string[]} */
  compare = [];
  lens = "";
  statistic = "";
  layer = "";
  search = "";
  /** @type {string[]} */
  pins = [];
  /** @type {string[]} */
  closed = [];
  /** @type {string[]} */
  opened = [];
  sort = CHOICES.sort[0];
  cell = CHOICES.cell[0];
  colour = CHOICES.colour[0];
  map = CHOICES.map[0];
  rows = CHOICES.rows[0];
  difference = false;
  x = CHOICES.x[0];
  logx = false;
  /** @type {number | null} */
  first = null;
  /** @type {number | null} */
  last = null;
  smooth = 0;
  robust = false;
  /** @type {Record<string, string>} */
  scales = {};
  tab = CHOICES.tab[0];
  /** @type {number | null} */
  at = null;
  findings = CHOICES.findings[0];
  theme = CHOICES.theme[0];
  runfilter = "";
  runsort = "";
}

/** @typedef {Partial<Omit<Choices, keyof EventTarget>>} Changes */
/** @typedef {keyof Changes} Field */

const USUAL = new Choices();
const FIELDS = /** @type {Field[]} */ (Object.keys(USUAL));

/** Where one is, which the Back button returns to; everything else is how it looks from there. */
const PLACE = /** @type {Field[]} */ ([
  "run",
  "compare",
  "lens",
  "statistic",
  "layer",
  "difference",
  "first",
  "last",
  "tab",
]);

export class State extends Choices {
  constructor() {
    super();
    this.read();
    addEventListener("popstate", () => {
      this.read();
      this.dispatchEvent(new Event("change"));
    });
  }

  /** Take over what the address says. What it does not say, or says in a way that means nothing, is as usual. */
  read() {
    Object.assign(this, parse(location.hash.slice(1)));
    this._write(false);
  }

  /**
   * Change some fields, notify all listeners, and update the URL; another place is another entry in the history.
   * @param {Changes} changes
   */
  set(changes) {
    this._change(changes, true);
  }

  /**
   * The same without an entry in the history, for derived values and for steps of a movement.
   * @param {Changes} changes
   */
  adjust(changes) {
    this._change(changes, false);
  }

  /**
   * Add to a list, or remove from it.
   * @param {"compare" | "pins"} name
   * @param {string} value
   */
  toggle(name, value) {
    this.set({
      [name]: this[name].includes(value) ? this[name].filter((item) => item !== value) : [...this[name], value],
    });
  }

  /**
   * Close a group of rows, or open it.
   * @param {string} group
   * @param {boolean} isClosed
   */
  fold(group, isClosed) {
    const others = (/** @type {string[]} */ list) => list.filter((name) => name !== group);
    this.set({
      closed: isClosed ? [...others(this.closed), group] : others(this.closed),
      opened: isClosed ? others(this.opened) : [...others(this.opened), group],
    });
  }

  /**
   * Choose the next of a few choices.
   * @param {keyof typeof CHOICES} name
   */
  turn(name) {
    const choices = /** @type {string[]} */ (CHOICES[name]);
    this.set({ [name]: choices[(choices.indexOf(this[name]) + 1) % choices.length] });
  }

  text() {
    return written(this);
  }

  /**
   * @param {Changes} changes
   * @param {boolean} isMove
   */
  _change(changes, isMove) {
    const before = this.text();
    const place = written(this, PLACE);
    Object.assign(this, changes);
    if (this.text() === before) return;
    this._write(isMove && written(this, PLACE) !== place);
    this.dispatchEvent(new Event("change"));
  }

  /** @param {boolean} isMove */
  _write(isMove) {
    const text = this.text();
    if (text === location.hash.slice(1)) return;
    try {
      history[isMove ? "pushState" : "replaceState"](null, "", `#${text}`);
    } catch {
      /* a frame without an address of its own */
    }
  }
}

/**
 * Fields that differ from the defaults, as text for the URL.
 * @param {Changes} choices
 * @param {Field[]} names
 */
export function written(choices, names = FIELDS) {
  const fields = new URLSearchParams();
  for (const name of names) {
    const [value, usual] = [choices[name], USUAL[name]];
    if (Array.isArray(value)) for (const item of value) fields.append(name, item);
    else if (name === "scales") {
      if (Object.keys(value ?? {}).length) fields.set(name, JSON.stringify(value));
    } else if (value !== usual && value !== null) fields.set(name, value === true ? "1" : String(value));
  }
  return fields.toString();
}

/**
 * All fields, from the text of a URL.
 * @param {string} text
 */
export function parse(text) {
  const fields = new URLSearchParams(text);
  const found = /** @type {Required<Changes>} */ (
    Object.fromEntries(FIELDS.map((name) => [name, fields.has(name) ? meaning(fields, name) : usual(name)]))
  );
  if (found.first !== null && found.last !== null && found.first > found.last) found.first = found.last = null;
  return found;
}

/** @param {Field} name */
function usual(name) {
  return structuredClone(USUAL[name]);
}

/**
 * @param {URLSearchParams} fields
 * @param {Field} name
 */
function meaning(fields, name) {
  const text = fields.get(name) ?? "";
  if (name in CHOICES) {
    const choices = /** @type {string[]} */ (CHOICES[/** @type {keyof typeof CHOICES} */ (name)]);
    return choices.includes(text) ? text : usual(name);
  }
  if (Array.isArray(USUAL[name])) return [...new Set(fields.getAll(name))];
  if (typeof USUAL[name] === "boolean") return text === "1";
  if (name === "smooth") return Math.min(Math.max(Number(text) || 0, 0), STRONGEST);
  if (USUAL[name] === null) return text !== "" && Number.isInteger(Number(text)) ? Number(text) : usual(name);
  return name === "scales" ? texts(text) : text;
}

/**
 * An object of texts; empty for anything else.
 * @param {string} text
 */
function texts(text) {
  try {
    return Object.fromEntries(Object.entries(JSON.parse(text)).filter(([, value]) => typeof value === "string"));
  } catch {
    return {};
  }
}
