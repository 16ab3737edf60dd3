// The server as a source of runs. Every address is relative, so that proxies may put the page anywhere.

import { unpack } from "page/blocks.js";

/** @import { HistogramQuestion, Question } from "page/data.js" */

const FALLBACK_MILLISECONDS = 2000;

export class RemoteSource {
  isLive = true;

  runs() {
    return getJson("api/runs");
  }

  /** @param {string} run */
  head(run) {
    return getJson("api/head", [["run", run]]);
  }

  /** @param {string} run */
  health(run) {
    return getJson("api/health", [["run", run]]);
  }

  /** @param {string} run */
  events(run) {
    return getJson("api/events", [["run", run]]);
  }

  /** @param {string[]} runs */
  summaries(runs) {
    return getJson(
      "api/summaries",
      runs.map((run) => ["run", run]),
    );
  }

  /**
   * Blocks of some statistics, `series` being pairs of lens and statistic.
   * @param {Question} question
   */
  async windows({ run, series, layers, first, last, resolution, planes }) {
    const query = new URLSearchParams({ run, resolution: String(resolution) });
    for (const [lens, statistic] of series) {
      query.append("lens", lens);
      query.append("statistic", statistic);
    }
    for (const layer of layers ?? []) query.append("layer", layer);
    for (const plane of planes ?? []) query.append("plane", plane);
    if (first !== null) query.append("first", String(first));
    if (last !== null) query.append("last", String(last));
    const response = await get(`api/windows?${query}`);
    return unpack(await response.arrayBuffer());
  }

  /**
   * Histograms of some layers at a step, or the last ones before it; of the newest step if that is null.
   * @param {HistogramQuestion} question
   */
  histogram({ run, lens, tag, layers, step }) {
    const fields = [["run", run], ["lens", lens], ["tag", tag], ...layers.map((layer) => ["layer", layer])];
    return getJson("api/histogram", step === null ? fields : [...fields, ["step", String(step)]]);
  }

  /**
   * Call back whenever something was stored; returns a function that stops this. A hidden page closes its connection.
   * @param {string[]} runs
   * @param {() => void} callback
   */
  follow(runs, callback) {
    /** @type {EventSource | null} */
    let stream = null;
    /** @type {number | undefined} */
    let timer;
    const open = () => {
      if (document.hidden || stream) return;
      const query = new URLSearchParams(runs.map((run) => ["run", run]));
      stream = new EventSource(`api/live?${query}`);
      stream.onmessage = callback;
      stream.onopen = callback;
      stream.onerror = () => {
        timer ??= setTimeout(() => {
          timer = undefined;
          callback();
        }, FALLBACK_MILLISECONDS);
      };
    };
    const close = () => {
      stream?.close();
      stream = null;
      clearTimeout(timer);
      timer = undefined;
    };
    const toggle = () => (document.hidden ? close() : open());
    document.addEventListener("visibilitychange", toggle);
    open();
    return () => {
      document.removeEventListener("visibilitychange", toggle);
      close();
    };
  }
}

/** The server has answered, and said no. */
export class Refusal extends Error {}

/** @param {string} address */
async function get(address) {
  const response = await fetch(address, { cache: "no-store" });
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error;
  } catch {
    /* plain text is the message itself */
  }
  throw new Refusal(message);
}

/**
 * @param {string} path
 * @param {string[][]} fields
 */
async function getJson(path, fields = []) {
  return (await get(`${path}?${new URLSearchParams(fields)}`)).json();
}
