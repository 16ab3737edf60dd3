// All runs, which of them to compare, and how their settings differ.

import { CURVES } from "page/colours.js";
import { arrange, breakable, cssColour, dot, element, markValid, write } from "page/dom.js";
import { columnsOf, compared, filtered, isValid, orderOf, rowsOf, settingsOf, sorted } from "page/runs_table.js";
import { shortNames } from "page/text.js";

/** @import { App } from "page/app.js" */
/** @import { RunColumn, RunRow } from "page/runs_table.js" */

const LONGEST_NAME = 34;
const EMPTY = "No runs yet. This page shows the first one as soon as it begins.";

export class RunsTab {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    const { state } = app;
    /** @type {Map<string, RunLine>} */
    this.lines = new Map();
    /** @type {Map<string, Heading>} */
    this.headings = new Map();
    this.settingsKey = "";
    this.message = element("p", { class: "runs-message", role: "status" });
    this.search = element("input", {
      type: "search",
      class: "search",
      placeholder: "Filter runs: a name, or lr=0.01",
      "aria-label": "Filter runs by name, status or setting",
      spellcheck: "false",
      oninput: () => state.set({ runfilter: this.search.value }),
    });
    this.total = element("span", { class: "muted", id: "run-filter-message" });
    this.bar = element("header", { class: "run-bar" }, this.search, this.total);
    this.compareHead = element("th", { scope: "col", class: "compare", text: "compare" });
    this.head = element("tr", {}, this.compareHead);
    this.list = element("tbody");
    this.table = element("table", { class: "run-list" }, element("thead", {}, this.head), this.list);
    this.scroll = element(
      "div",
      { class: "run-scroll", role: "region", tabindex: "0", "aria-label": "All runs" },
      this.table,
    );
    this.settings = element("div", { class: "settings" });
    this.root = element("div", { class: "runs" }, this.message, this.bar, this.scroll, this.settings);
  }

  show() {
    const { app } = this;
    const { state, runs, data } = app;
    const rows = rowsOf(runs, (name) => data.summaries.get(name)?.summary ?? null);
    const columns = columnsOf(rows);
    const shown = sorted(filtered(rows, state.runfilter), columns, state.runsort);
    this.message.replaceChildren(...this.messageText());
    this.message.hidden = !this.message.textContent;
    this.bar.hidden = this.scroll.hidden = !runs.length;
    if (document.activeElement !== this.search) this.search.value = state.runfilter;
    const total = `${rows.length} ${plural(rows.length)}`;
    const found = shown.length < rows.length ? `${shown.length} of ${rows.length} runs` : total;
    const isFilterValid = isValid(state.runfilter);
    this.total.textContent = isFilterValid
      ? found
      : `${found}; the filter is not a regular expression: it is searched as plain text`;
    markValid(this.search, isFilterValid, this.total);
    this.showHead(columns);
    const names = runs.map(({ name }) => name);
    const short = new Map(shortNames(names, LONGEST_NAME).map((text, place) => [names[place], text]));
    arrange(
      this.list,
      shown.map((row) => this.line(row, columns, short.get(row.info.name) ?? row.info.name)),
    );
    this.showSettings();
  }

  /** Why there is a list where a run was asked for. */
  messageText() {
    const { state, runs, isMissing } = this.app;
    if (!isMissing) return runs.length ? [] : [EMPTY];
    const name = element("b", { text: state.run });
    const known = runs.find((run) => run.name === state.run);
    if (known) return ["The run ", name, ` ${known.problem ?? `is ${known.status}`}. These are all runs:`];
    return ["There is no run ", name, runs.length ? " here. These are all runs:" : " here, and no other run."];
  }

  /** @param {RunColumn[]} columns */
  showHead(columns) {
    const { column: sortedBy, isDown } = orderOf(columns, this.app.state.runsort);
    const cells = columns.map((column) => {
      const heading = this.headings.get(column.key) ?? new Heading(this.app, column.key);
      this.headings.set(column.key, heading);
      heading.show(column, column === sortedBy ? (isDown ? "descending" : "ascending") : null);
      return heading.root;
    });
    arrange(this.head, [this.compareHead, ...cells]);
  }

  /**
   * The line of a run: the same one as before, with what has changed.
   * @param {RunRow} row
   * @param {RunColumn[]} columns
   * @param {string} name
   */
  line(row, columns, name) {
    const line = this.lines.get(row.info.name) ?? new RunLine(this.app, row.info.name);
    this.lines.set(row.info.name, line);
    line.show(row, columns, name);
    return line.root;
  }

  /** Settings of one run, or of several with those first that differ. */
  showSettings() {
    const { state, heads, isMissing } = this.app;
    const names = isMissing ? [] : [state.run, ...state.compare].filter((name) => heads.has(name));
    const all = names.map((name) => settingsOf(heads.get(name)?.meta ?? {}));
    const key = JSON.stringify([names, all.map((settings) => [...settings])]);
    if (key === this.settingsKey) return;
    this.settingsKey = key;
    const { differ, same } = compared(all);
    const parts =
      names.length < 2
        ? [settingsTable(names.length ? `Settings of ${names[0]}` : "", same, [], all)]
        : [
            settingsTable("Settings that differ", differ, names, all),
            settingsTable("The same in all of them", same, [], all.slice(0, 1)),
          ];
    this.settings.replaceChildren(...parts.filter((part) => part !== null));
  }
}

/** @param {number} total */
function plural(total) {
  return total === 1 ? "run" : "runs";
}

/** The head of a column, which sorts by it. */
class Heading {
  /**
   * @param {App} app
   * @param {string} key
   */
  constructor(app, key) {
    this.app = app;
    this.key = key;
    this.button = element("button", { type: "button", onclick: () => this.choose() });
    this.root = element("th", { scope: "col" }, this.button);
  }

  /** Upwards, then downwards, then as they were: the newest first. */
  choose() {
    const { state } = this.app;
    const next = { [this.key]: `-${this.key}`, [`-${this.key}`]: "" }[state.runsort] ?? this.key;
    state.set({ runsort: next });
  }

  /**
   * @param {RunColumn} column
   * @param {"ascending" | "descending" | null} order
   */
  show({ title, kind, key }, order) {
    write(this.button, title, `Sort by ${title}`);
    this.root.className = key === "run" ? "name" : kind;
    if (order) this.root.setAttribute("aria-sort", order);
    else this.root.removeAttribute("aria-sort");
  }
}

/** A run in the table; its nodes stay while it does, so that focus and scrolling do. */
class RunLine {
  /**
   * @param {App} app
   * @param {string} name
   */
  constructor(app, name) {
    this.app = app;
    this.name = name;
    /** @type {Map<string, HTMLTableCellElement>} */
    this.cells = new Map();
    this.box = element("input", {
      type: "checkbox",
      "aria-label": `Compare with ${name}`,
      onchange: () => app.state.toggle("compare", name),
    });
    this.dot = dot("transparent");
    this.text = element("bdi");
    const open = element(
      "button",
      { type: "button", class: "link", title: name, onclick: () => app.navigation.openRun(name, { tab: "layer" }) },
      this.text,
    );
    this.compare = element("td", { class: "compare" }, this.box);
    const named = element("div", { class: "run-name" }, this.dot, open);
    this.cells.set("run", element("th", { scope: "row", class: "name" }, named));
    this.root = element("tr", { "data-run": name });
  }

  /**
   * @param {RunRow} row
   * @param {RunColumn[]} columns
   * @param {string} name
   */
  show(row, columns, name) {
    const { state, isMissing } = this.app;
    const isOpen = row.info.name === state.run;
    const place = isMissing ? -1 : [state.run, ...state.compare].indexOf(this.name);
    this.root.classList.toggle("is-open", isOpen);
    write(this.text, name);
    this.box.disabled = isOpen;
    this.box.checked = !isOpen && state.compare.includes(this.name);
    this.dot.style.background = place < 0 ? "transparent" : cssColour(CURVES[place % CURVES.length]);
    arrange(this.root, [this.compare, ...columns.map((column) => this.cell(row, column))]);
  }

  /**
   * @param {RunRow} row
   * @param {RunColumn} column
   */
  cell(row, column) {
    const cell = this.cells.get(column.key) ?? element("td", { class: column.kind, "data-column": column.key });
    this.cells.set(column.key, cell);
    if (column.key === "run") return cell;
    const text = column.text(row);
    write(cell, text, text);
    if (column.key === "status") cell.className = `fact is-${row.info.status}`;
    if (column.kind === "metric") cell.classList.toggle("is-broken", text === "NaN" || text.endsWith("Inf"));
    return cell;
  }
}

/**
 * A line for each setting, a column for each run; those that differ have the runs' names above.
 * @param {string} title
 * @param {string[]} keys
 * @param {string[]} names
 * @param {Map<string, string>[]} columns
 */
function settingsTable(title, keys, names, columns) {
  if (!keys.length) return null;
  const heads = names.map((name) => element("th", { scope: "col" }, breakable(name)));
  const line = (/** @type {string} */ key) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, breakable(key)),
      ...columns.map((column) => element("td", {}, breakable(column.get(key) ?? "–"))),
    );
  const body = element("tbody", {}, ...keys.map(line));
  const head = names.length ? element("thead", {}, element("tr", {}, element("th"), ...heads)) : null;
  const found = element("table", { class: names.length ? "is-different" : null }, head, body);
  return element("section", {}, element("h3", { text: title }), element("div", { class: "run-scroll" }, found));
}
