// The keys of the page.

import { element } from "page/dom.js";

/** @import { App } from "page/app.js" */

const HELP = [
  ["/", "filter layers by a regular expression, or runs"],
  ["j k ↓ ↑", "next or previous layer"],
  ["← →", "move the cursor, and with it numbers and histograms"],
  ["Enter", "open the layer"],
  ["p", "pin the layer to the top"],
  ["[ ]", "previous or next statistic"],
  ["s", "order of rows: model, worst, name"],
  ["l", "colours: auto, linear, log"],
  ["f", "row height: fit all, or readable"],
  ["m", "viridis or cividis"],
  ["x", "axis: step, epoch or tick, time"],
  ["X", "axis: even, or logarithmic"],
  ["d", "difference to the compared run"],
  ["0", "reset the zoom (or a double click)"],
  ["v", "show or hide the findings"],
  ["1 2 3 4", "layer, alerts, runs, table"],
  ["space", "pause, resume"],
  ["t", "theme: light, dark, system"],
  ["y", "copy a link to this view"],
  ["Esc", "clear the filter, close the layer"],
  ["?", "this list"],
];

export class Help {
  constructor() {
    const rows = HELP.map(([keys, text]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, ...keys.split(" ").map((key) => element("kbd", { text: key }))),
        element("td", { text }),
      ),
    );
    this.root = element(
      "dialog",
      { class: "help", "aria-label": "Keys" },
      element("h2", { text: "Keys" }),
      element("table", {}, element("tbody", {}, ...rows)),
      element("p", {
        class: "muted",
        text: "Drag over the heat map or a chart to zoom; click a row to open its layer.",
      }),
    );
    this.root.addEventListener("click", () => this.root.close());
  }

  show() {
    if (this.root.open) this.root.close();
    else this.root.showModal();
  }
}

/**
 * @param {App} app
 * @returns {Record<string, () => void>}
 */
function actions(app) {
  const { state } = app;
  const layer = (/** @type {number} */ step) => () => app.navigation.nextLayer(step);
  return {
    "/": () => app.focusFilter(),
    j: layer(1),
    k: layer(-1),
    ArrowDown: layer(1),
    ArrowUp: layer(-1),
    ArrowLeft: () => app.navigation.moveCursor(-1),
    ArrowRight: () => app.navigation.moveCursor(1),
    Enter: () => state.set({ tab: "layer" }),
    p: () => state.layer && state.toggle("pins", state.layer),
    "[": () => app.navigation.nextStatistic(-1),
    "]": () => app.navigation.nextStatistic(1),
    s: () => state.turn("sort"),
    l: () => state.turn("colour"),
    f: () => state.turn("rows"),
    m: () => state.turn("map"),
    x: () => state.turn("x"),
    X: () => state.set({ logx: !state.logx }),
    v: () => state.turn("findings"),
    d: () => state.compare.length && state.set({ difference: !state.difference }),
    0: () => state.set({ first: null, last: null }),
    1: () => state.set({ tab: "layer" }),
    2: () => state.set({ tab: "alerts" }),
    3: () => state.set({ tab: "runs" }),
    4: () => state.set({ tab: "table" }),
    " ": () => app.togglePause(),
    t: () => state.turn("theme"),
    y: () => app.notice.copyLink(),
    Escape: () => {
      if (app.view === "runs") state.set({ runfilter: "" });
      else state.set(state.search ? { search: "" } : { layer: "", at: null });
    },
    "?": () => app.help.show(),
  };
}

/** @param {App} app */
export function listen(app) {
  const known = actions(app);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { target } = event;
    if (!(target instanceof HTMLElement)) return;
    const isTyping = target.matches("input:not([type=range]):not([type=checkbox]), textarea");
    if (isTyping && event.key === "Escape") target.blur();
    if (isTyping && event.key !== "Escape") return;
    if (target.matches("select:focus-visible")) {
      // reached by keyboard: letters choose among its options; after a click they are keys of the page again
      if (event.key === "Escape") target.blur();
      return;
    }
    if (target.matches("select, [type=range]") && event.key.startsWith("Arrow")) return;
    if (target.matches("button, select, a, [type=checkbox]") && [" ", "Enter"].includes(event.key)) return;
    if (app.help.root.open && event.key !== "?") return;
    const action = known[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
