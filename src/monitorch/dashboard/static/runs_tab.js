// All runs, which of them to compare, and how their settings differ.

import { CURVES } from "page/colours.js";
import { cssColour, element } from "page/dom.js";
import { bytes, count, duration } from "page/format.js";

export class RunsTab {
  constructor(app) {
    this.app = app;
    this.list = element("tbody");
    this.settings = element("div", { class: "settings" });
    const heads = ["compare", "run", "steps", "size", "seen"];
    this.root = element(
      "div",
      { class: "runs" },
      element(
        "table",
        { class: "run-list" },
        element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col", text })))),
        this.list,
      ),
      this.settings,
    );
  }

  show() {
    const { app } = this;
    this.list.replaceChildren(...app.runs.map((run) => this.row(run)));
    const names = [app.state.run, ...app.state.compare].filter((name) => app.heads.has(name));
    this.settings.replaceChildren(...this.comparison(names));
  }

  row(run) {
    const { state } = this.app;
    const isOpen = run.name === state.run;
    const box = element("input", {
      type: "checkbox",
      "aria-label": `Compare with ${run.name}`,
      disabled: isOpen,
      onchange: () => state.toggle("compare", run.name),
    });
    box.checked = !isOpen && state.compare.includes(run.name);
    const place = [state.run, ...state.compare].indexOf(run.name);
    const dot = element("span", { class: "dot" });
    dot.style.background = place < 0 ? "transparent" : cssColour(CURVES[place % CURVES.length]);
    const open = element(
      "button",
      { type: "button", class: "link", onclick: () => this.app.navigation.openRun(run.name) },
      element("bdi", { text: run.name }),
    );
    return element(
      "tr",
      { class: isOpen ? "is-open" : null },
      element("td", {}, box),
      element(
        "th",
        { scope: "row" },
        dot,
        open,
        element("span", { class: `muted small is-${run.status}`, text: run.status }),
      ),
      element("td", { text: count(run.last_step) }),
      element("td", { text: bytes(run.size) }),
      element("td", { text: duration(run.age) }),
    );
  }

  /** Settings of one run, or of several with those first that differ. */
  comparison(names) {
    const columns = names.map((name) => flat(settingsOf(this.app.heads.get(name).meta)));
    const keys = [...new Set(columns.flatMap((column) => [...column.keys()]))];
    const differ = keys.filter((key) => columns.some((column) => column.get(key) !== columns[0].get(key)));
    const same = keys.filter((key) => !differ.includes(key));
    if (names.length < 2) return this.table("Settings", same, [], columns);
    return [
      ...this.table("Settings that differ", differ, names, columns),
      ...this.table("The same in all", same, [], columns.slice(0, 1)),
    ];
  }

  /** A line for each setting, a column for each run; those that differ have the runs' names above. */
  table(title, keys, names, columns) {
    if (!keys.length) return [];
    const heads = names.map((text) => element("th", { scope: "col", text }));
    const line = (key) =>
      element(
        "tr",
        {},
        element("th", { scope: "row", text: key }),
        ...columns.map((column) => element("td", { text: column.get(key) ?? "–" })),
      );
    const body = element("tbody", {}, ...keys.map(line));
    const head = names.length ? element("thead", {}, element("tr", {}, element("th"), ...heads)) : null;
    const found = element("table", { class: names.length ? "is-different" : null }, head, body);
    return [element("section", {}, element("h3", { text: title }), found)];
  }
}

function settingsOf({ config, versions, host, rank, ...rest }) {
  const others = Object.fromEntries(
    Object.entries(rest).filter(
      ([key]) =>
        !["id", "name", "status", "started", "ended", "resumed", "heartbeat", "pid", "dropped", "overhead"].includes(
          key,
        ),
    ),
  );
  return { ...config, ...others, versions, host };
}

/** Settings inside of settings, with their names joined. */
function flat(value, prefix = "", found = new Map()) {
  const isPlain = !Array.isArray(value) || value.every((item) => item === null || typeof item !== "object");
  if (value !== null && typeof value === "object" && !(Array.isArray(value) && isPlain)) {
    for (const [key, inner] of Object.entries(value)) flat(inner, prefix ? `${prefix}.${key}` : key, found);
  } else if (value !== undefined && value !== null)
    found.set(prefix, typeof value === "string" ? value : JSON.stringify(value));
  return found;
}
