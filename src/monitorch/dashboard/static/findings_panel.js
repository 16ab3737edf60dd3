// What is wrong with the run: a card for each first cause, with its consequences folded under it.

import { breakable, element, renew } from "page/dom.js";
import { count } from "page/format.js";
import { cases, isOpen, worstTone } from "page/health.js";
import { layerText } from "page/names.js";
import { sparkline } from "page/sparkline.js";

/** @import { App } from "page/app.js" */
/** @import { Case, Finding, Tone } from "page/health.js" */

const MOST_CURVES = 2;

export class FindingsPanel {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.shown = "";
    /** @type {Set<string>} */
    this.unfolded = new Set();
    this.root = element("section", { class: "findings", id: "findings", "aria-label": "Findings", hidden: true });
  }

  show() {
    const { findings: found, notes = [] } = this.app.health ?? {};
    const findings = found ?? [];
    this.root.hidden = !(findings.length || notes.length) || this.app.state.findings === "hidden";
    const shown = JSON.stringify([findings, notes]);
    if (shown === this.shown) return; // a card that is read is left alone
    this.shown = shown;
    const all = cases(findings);
    const over = all.filter((one) => !isGoing(one));
    renew(this.root, [
      ...all.filter(isGoing).map((one) => this.card(one)),
      ...(over.length ? [this.past(over)] : []),
      ...notes.map((note) => element("p", { class: "diagnosis-note", text: note })),
    ]);
  }

  /**
   * Problems that are over, folded.
   * @param {Case[]} found
   */
  past(found) {
    const findings = found.flatMap(({ cause, consequences }) => [cause, ...consequences]);
    const node = this.folded("over", findings, counted(findings, "problem is over", "problems are over"));
    return element("article", { class: "finding panel", "data-tone": "over" }, node);
  }

  /** @param {Case} found */
  card({ cause, consequences }) {
    const curves = cause.evidence.filter(({ values }) => values.length).slice(0, MOST_CURVES);
    return element(
      "article",
      {
        class: "finding panel",
        "data-tone": worstTone([cause, ...consequences].filter(isOpen).map(({ severity }) => severity)),
      },
      this.head(cause),
      element(
        "div",
        { class: "finding-body" },
        element("div", { class: "finding-text" }, ...texts(cause)),
        curves.length ? element("div", { class: "evidence" }, ...curves.map(sparkline)) : null,
      ),
      consequences.length
        ? this.folded(cause.id, consequences, counted(consequences, "consequence", "consequences"))
        : null,
    );
  }

  /** @param {Finding} finding */
  head(finding) {
    return element(
      "header",
      { class: "finding-head" },
      element(
        "div",
        {},
        element("span", { class: "severity", "data-tone": toneOf(finding), text: toneOf(finding) }),
        element("h3", { text: finding.title }),
        finding.layer ? element("span", { class: "muted", text: "in" }) : null,
        finding.layer ? element("bdi", { class: "mono finding-layer" }, breakable(layerText(finding.layer))) : null,
        element("span", { class: "muted since", text: since(finding) }),
      ),
      element("button", {
        type: "button",
        class: "show",
        "data-key": finding.id,
        text: "Show",
        title: `Go to ${finding.layer ? "this layer" : "the loss"} at step ${count(finding.step)}`,
        onclick: () => this.app.navigation.openFinding(finding),
      }),
    );
  }

  /**
   * A list of findings that opens with a click; it stays open while the page is.
   * @param {string} key
   * @param {Finding[]} findings
   * @param {string} what
   */
  folded(key, findings, what) {
    const summary = element(
      "summary",
      { "data-key": key },
      element("b", { text: what }),
      element("span", { text: told(findings) }),
    );
    const items = findings.map((finding) =>
      element(
        "div",
        { class: "consequence", "data-tone": toneOf(finding) },
        this.head(finding),
        element("div", { class: "finding-text" }, ...texts(finding)),
      ),
    );
    const node = element("details", { open: this.unfolded.has(key) }, summary, ...items);
    node.addEventListener("toggle", () => this.unfolded[node.open ? "add" : "delete"](key));
    return node;
  }
}

/**
 * @param {Finding} finding
 * @returns {Tone | "over"}
 */
function toneOf(finding) {
  return isOpen(finding) ? finding.severity : "over";
}

/**
 * @param {Finding[]} findings
 * @param {string} one
 * @param {string} several
 */
function counted(findings, one, several) {
  return `${count(findings.length)} ${findings.length === 1 ? one : several}`;
}

/**
 * Whether the cause, or something that it has caused, lasts.
 * @param {Case} found
 */
function isGoing({ cause, consequences }) {
  return [cause, ...consequences].some(isOpen);
}

/** @param {Finding} finding */
function since({ step, resolved_at: end }) {
  return `since step ${count(step)}${end === null ? "" : `, over since step ${count(end)}`}`;
}

/** @param {Finding} finding */
function texts({ explanation, remedy, confidence }) {
  const sure = confidence < 1 ? `${Math.round(100 * confidence)} % sure` : "";
  return [
    element("p", { text: explanation }),
    remedy.text ? element("p", { class: "remedy" }, element("b", { text: "Try: " }), remedy.text) : null,
    sure ? element("p", { class: "muted small", text: sure }) : null,
  ];
}

/**
 * What the consequences are, each kind once.
 * @param {Finding[]} findings
 */
function told(findings) {
  /** @type {Map<string, number>} */
  const kinds = new Map();
  for (const { title } of findings) kinds.set(title, (kinds.get(title) ?? 0) + 1);
  return [...kinds].map(([title, times]) => (times > 1 ? `${title} ×${times}` : title)).join(", ");
}
