// The server as a source of runs. Every address is relative, so that proxies may put the page anywhere.

import { unpack } from "page/blocks.js";

const FALLBACK_MILLISECONDS = 2000;

export class RemoteSource {
  isLive = true;

  runs() {
    return getJson("api/runs", {});
  }

  head(run) {
    return getJson("api/head", { run });
  }

  events(run) {
    return getJson("api/events", { run });
  }

  /** Blocks of some statistics, `series` being pairs of lens and statistic. */
  async windows({ run, series, layers, first, last, resolution, planes }) {
    const query = new URLSearchParams({ run, resolution });
    for (const [lens, statistic] of series) {
      query.append("lens", lens);
      query.append("statistic", statistic);
    }
    for (const layer of layers ?? []) query.append("layer", layer);
    for (const plane of planes ?? []) query.append("plane", plane);
    if (first !== null) query.append("first", first);
    if (last !== null) query.append("last", last);
    const response = await get(`api/windows?${query}`);
    return unpack(await response.arrayBuffer());
  }

  /** Call back whenever something was stored; returns what ends that. A hidden page leaves its connection to others. */
  follow(runs, callback) {
    let stream = null;
    let timer = null;
    const open = () => {
      if (document.hidden || stream) return;
      const query = new URLSearchParams(runs.map((run) => ["run", run]));
      stream = new EventSource(`api/live?${query}`);
      stream.onmessage = callback;
      stream.onopen = callback;
      stream.onerror = () => {
        timer ??= setTimeout(() => {
          timer = null;
          callback();
        }, FALLBACK_MILLISECONDS);
      };
    };
    const close = () => {
      stream?.close();
      stream = null;
      clearTimeout(timer);
      timer = null;
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
  throw Object.assign(new Error(message), { status: response.status });
}

async function getJson(path, fields) {
  return (await get(`${path}?${new URLSearchParams(fields)}`)).json();
}
