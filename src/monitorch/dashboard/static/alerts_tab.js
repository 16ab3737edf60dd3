// Events of the run: what happened, where, why, and what to try.

import { element, renew } from "page/dom.js";
import { count, number } from "page/format.js";
import { layerText } from "page/names.js";

/** @import { App } from "page/app.js" */
/** @import { RunError, RunEvent } from "page/data.js" */

const FIRST = ["reason", "message", "evidence", "threshold", "remedy", "try"];
const MOST = 200;

export class AlertsTab {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.root = element("div", { class: "alerts" });
  }

  show() {
    const error = this.app.runError();
    const all = [...this.app.alerts()].sort((one, other) => one.step - other.step || one.id - other.id);
    const shown = all.slice(0, MOST);
    /** @type {HTMLElement[]} */
    const nodes = shown.map((event) => this.item(event));
    if (error) nodes.unshift(errorItem(error));
    if (!nodes.length)
      nodes.push(
        element("p", {
          class: "empty",
          text: this.app.state.search ? "No alerts in the layers that match." : "Nothing to report.",
        }),
      );
    if (all.length > MOST)
      nodes.push(element("p", { class: "muted", text: `${all.length - MOST} later alerts are not listed.` }));
    renew(this.root, nodes);
  }

  /** @param {RunEvent} event */
  item(event) {
    const { text, numbers, finding: _, ...others } = event.body; // the name of a finding is for programs
    const known = Object.entries({ ...others, ...(typeof numbers === "object" ? numbers : {}) });
    const first = FIRST.flatMap((key) => known.filter(([name]) => name === key));
    const facts = [...first, ...known.filter(([name]) => !FIRST.includes(name))].flatMap(([name, value]) => [
      element("dt", { text: name.replaceAll("_", " ") }),
      element("dd", { text: shownValue(value) }),
    ]);
    return element(
      "button",
      { type: "button", class: `alert is-${event.severity}`, onclick: () => this.app.navigation.openAlert(event) },
      element(
        "span",
        { class: "alert-head" },
        element("b", { text: event.kind.replaceAll("_", " ") }),
        element("span", { class: "muted", text: `step ${count(event.step)}` }),
      ),
      event.layer ? element("bdi", { class: "mono", text: layerText(event.layer) }) : null,
      text ? element("span", { class: "alert-text", text: String(text) }) : null,
      facts.length ? element("dl", {}, ...facts) : null,
    );
  }
}

/**
 * What ended the run, with the last lines of the traceback.
 * @param {RunError} error
 */
function errorItem({ type, message, traceback }) {
  return element(
    "div",
    { class: "alert is-error run-error" },
    element(
      "span",
      { class: "alert-head" },
      element("b", { text: type }),
      element("span", { class: "muted", text: "ended the run" }),
    ),
    message ? element("p", { text: message }) : null,
    traceback.length ? element("pre", { text: traceback.join("\n") }) : null,
  );
}

/** @param {unknown} value */
function shownValue(value) {
  if (typeof value === "number") return Number.isSafeInteger(value) ? count(value) : number(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
