// All runs as a table: which columns it has, how they are sorted, and which runs a filter leaves.

import { bytes, count, duration, number } from "page/format.js";
import { isLoss, matcher, short, title } from "page/names.js";

/** @import { Meta, RunInfo, StatisticFacts, Summary } from "page/data.js" */

/**
 * A run; `metrics` are the newest numbers of the whole run, by the name of a statistic.
 * @typedef {{
 *   info: RunInfo, settings: Map<string, string>, statistics: StatisticFacts[], metrics: Map<string, number>,
 *   seconds: number | null, verdict: string,
 * }} RunRow
 */

/**
 * `value` is what a column is sorted by; null is nothing, and comes last.
 * @typedef {{
 *   key: string, title: string, kind: "fact" | "metric" | "setting",
 *   text: (row: RunRow) => string, value: (row: RunRow) => number | string | null,
 * }} RunColumn
 */

/** What a run knows of itself that is no setting. */
const NO_SETTINGS = [
  ...["id", "writer", "name", "status", "started", "ended", "resumed"],
  ...["heartbeat", "pid", "rank", "dropped", "overhead", "overhead_at_least", "error", "tick_unit"],
];

const LONGEST_NUMBER = 9;

/**
 * @param {RunInfo[]} infos
 * @param {(name: string) => Summary | null} summaryOf
 * @returns {RunRow[]}
 */
export function rowsOf(infos, summaryOf) {
  return infos.map((info) => {
    const { meta = {}, statistics = [], newest = {}, verdict = "–" } = summaryOf(info.name) ?? {};
    const metrics = Object.entries(newest).map(([name, value]) => /** @type {const} */ ([name, Number(value)]));
    return { info, settings: settingsOf(meta), statistics, metrics: new Map(metrics), seconds: seconds(meta), verdict };
  });
}

/**
 * How long a run has taken, until its end or its last heartbeat.
 * @param {Meta} meta
 */
function seconds({ started, ended, heartbeat }) {
  const end = ended ?? heartbeat;
  return started === undefined || end === undefined ? null : Math.max(end - started, 0);
}

/**
 * The settings of a run; nested settings have their names joined.
 * @param {Meta} meta
 */
export function settingsOf({ config, versions, host, ...rest }) {
  const others = Object.fromEntries(Object.entries(rest).filter(([key]) => !NO_SETTINGS.includes(key)));
  const own = config !== null && typeof config === "object" ? config : {};
  return flat({ ...own, ...others, versions, host });
}

/**
 * @param {unknown} value
 * @param {string} prefix
 * @param {Map<string, string>} found
 */
function flat(value, prefix = "", found = new Map()) {
  if (value === null || value === undefined) return found;
  const isPlainList = Array.isArray(value) && value.every((item) => item === null || typeof item !== "object");
  if (typeof value !== "object" || isPlainList) {
    found.set(prefix, typeof value === "string" ? value : JSON.stringify(value));
    return found;
  }
  for (const [key, inner] of Object.entries(value)) flat(inner, prefix ? `${prefix}.${key}` : key, found);
  return found;
}

/**
 * Which settings differ between some runs, and which are the same in all of them.
 * @param {Map<string, string>[]} all
 */
export function compared(all) {
  const keys = [...new Set(all.flatMap((settings) => [...settings.keys()]))];
  const isSame = (/** @type {string} */ key) => all.every((settings) => settings.get(key) === all[0].get(key));
  return { differ: keys.filter((key) => !isSame(key)), same: keys.filter(isSame) };
}

/**
 * How each run is comes first, then results, then the settings that differ, then the facts that every run has.
 * @param {RunRow[]} rows
 * @returns {RunColumn[]}
 */
export function columnsOf(rows) {
  const statistics = new Map(rows.flatMap((row) => row.statistics).map((statistic) => [statistic.name, statistic]));
  const known = [...statistics.values()]
    .filter(({ tag }) => !tag.startsWith("Warning "))
    .sort((one, other) => Number(isLoss(other)) - Number(isLoss(one)));
  const names = known.map((statistic) => short(statistic) || statistic.tag || statistic.name);
  const metrics = known.map((statistic, place) => ({
    key: statistic.name,
    title: names.filter((name) => name === names[place]).length > 1 ? title(statistic) : names[place],
    kind: /** @type {const} */ ("metric"),
    text: (/** @type {RunRow} */ row) => number(row.metrics.get(statistic.name)),
    value: (/** @type {RunRow} */ row) => row.metrics.get(statistic.name) ?? null,
  }));
  const [run, health, status, ...facts] = factColumns();
  const taken = new Set([run, health, status, ...facts, ...metrics].map((column) => column.title));
  const settings = compared(rows.map((row) => row.settings)).differ.map((key) => ({
    key: `setting ${key}`,
    title: taken.has(key) ? `${key} (setting)` : key,
    kind: /** @type {const} */ ("setting"),
    text: (/** @type {RunRow} */ row) => shortened(row.settings.get(key) ?? "–"),
    value: (/** @type {RunRow} */ row) => numeric(row.settings.get(key) ?? null),
  }));
  return [run, health, status, ...metrics, ...settings, ...facts];
}

/** @param {string | null} text */
function numeric(text) {
  return text === null || text === "" || Number.isNaN(Number(text)) ? text : Number(text);
}

/**
 * Computed settings have many digits; a few are enough to tell them apart.
 * @param {string} text
 */
function shortened(text) {
  const value = numeric(text);
  return typeof value === "number" && text.length > LONGEST_NUMBER ? String(Number(value.toPrecision(5))) : text;
}

/** @returns {RunColumn[]} */
function factColumns() {
  /** @type {[string, (row: RunRow) => string, (row: RunRow) => number | string | null][]} */
  const facts = [
    ["run", (row) => row.info.name, (row) => row.info.name],
    ["health", (row) => row.verdict, (row) => row.verdict],
    ["status", (row) => row.info.status, (row) => row.info.status],
    ["steps", (row) => count(row.info.last_step), (row) => row.info.last_step],
    ["duration", (row) => (row.seconds === null ? "–" : duration(row.seconds)), (row) => row.seconds],
    ["last update", (row) => `${duration(row.info.age)} ago`, (row) => row.info.age],
    ["size", (row) => bytes(row.info.size), (row) => row.info.size],
  ];
  return facts.map(([name, text, value]) => ({ key: name, title: name, kind: "fact", text, value }));
}

/**
 * Sorted by the column in `order`, descending if it begins with a minus; unsorted if there is none.
 * @param {RunRow[]} rows
 * @param {RunColumn[]} columns
 * @param {string} order
 */
export function sorted(rows, columns, order) {
  const { column, isDown } = orderOf(columns, order);
  if (!column) return rows;
  const known = (/** @type {RunRow} */ row) => {
    const value = column.value(row);
    return typeof value === "number" && Number.isNaN(value) ? null : value;
  };
  return [...rows].sort((one, other) => {
    const [a, b] = [known(one), known(other)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    const sign =
      typeof a === "number" && typeof b === "number"
        ? a - b
        : String(a).localeCompare(String(b), "en", { numeric: true });
    return isDown ? -sign : sign;
  });
}

/**
 * @param {RunColumn[]} columns
 * @param {string} order
 */
export function orderOf(columns, order) {
  const isDown = order.startsWith("-");
  const key = isDown ? order.slice(1) : order;
  return { column: columns.find((column) => column.key === key) ?? null, isDown };
}

/** @param {string} filter */
function words(filter) {
  return filter.split(/\s+/).filter(Boolean);
}

/**
 * Whether every word of the filter is a regular expression.
 * @param {string} filter
 */
export function isValid(filter) {
  return words(filter).every((word) => matcher(word).isValid);
}

/**
 * Runs that every word of the filter matches: in a name, a status, or a setting such as lr=0.1.
 * @param {RunRow[]} rows
 * @param {string} filter
 */
export function filtered(rows, filter) {
  const tests = words(filter).map((word) => matcher(word).test);
  const texts = (/** @type {RunRow} */ { info, settings }) => [
    info.name,
    info.status,
    ...[...settings].map(([key, value]) => `${key}=${value}`),
  ];
  return rows.filter((row) => {
    const all = texts(row);
    return tests.every((test) => all.some(test));
  });
}
