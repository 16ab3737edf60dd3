// All that can be chosen on the page, kept in the address, so that a link shows what its sender sees.

const DEFAULTS = {
  run: "",
  compare: [],
  lens: "",
  statistic: "",
  layer: "",
  search: "",
  pins: [],
  closed: [],
  sort: "model",
  cell: "maximum",
  colour: "auto",
  map: "viridis",
  rows: "fit",
  difference: false,
  x: "step",
  logx: false,
  first: null,
  last: null,
  smooth: 0,
  robust: false,
  scales: {},
  tab: "layer",
  at: null,
  theme: "system",
};

export class State extends EventTarget {
  constructor(where = location) {
    super();
    this._where = where;
    this.read();
    addEventListener("hashchange", () => {
      if (this._where.hash.slice(1) === this._written) return;
      this.read();
      this.dispatchEvent(new Event("change"));
    });
  }

  /** Take over what the address says; what it does not say is as usual. */
  read() {
    const fields = new URLSearchParams(this._where.hash.slice(1));
    for (const [name, usual] of Object.entries(DEFAULTS)) {
      this[name] = fields.has(name) ? parse(fields, name, usual) : structuredClone(usual);
    }
  }

  /** Change some fields, tell everybody, and put them into the address. */
  set(changes) {
    const before = this.text();
    Object.assign(this, changes);
    if (this.text() === before) return;
    this._written = this.text();
    try {
      history.replaceState(null, "", `#${this._written}`);
    } catch {
      /* a frame without an address of its own */
    }
    this.dispatchEvent(new Event("change"));
  }

  /** Add to a list, or take away from it. */
  toggle(name, value) {
    this.set({
      [name]: this[name].includes(value) ? this[name].filter((item) => item !== value) : [...this[name], value],
    });
  }

  text() {
    const fields = new URLSearchParams();
    for (const [name, usual] of Object.entries(DEFAULTS)) {
      const value = this[name];
      if (Array.isArray(usual)) value.forEach((item) => fields.append(name, item));
      else if (name === "scales") {
        if (Object.keys(value).length) fields.set(name, JSON.stringify(value));
      } else if (value !== usual && value !== null) fields.set(name, value === true ? "1" : value);
    }
    return fields.toString();
  }
}

function parse(fields, name, usual) {
  const text = fields.get(name);
  if (Array.isArray(usual)) return fields.getAll(name);
  if (typeof usual === "boolean") return text === "1";
  if (typeof usual === "number" || usual === null)
    return Number.isFinite(Number(text)) && text !== "" ? Number(text) : usual;
  if (typeof usual === "object") {
    try {
      return Object(JSON.parse(text));
    } catch {
      return {};
    }
  }
  return text;
}
