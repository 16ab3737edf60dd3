// Whether the run is alive.

import { element, iconButton } from "page/dom.js";
import { count, duration } from "page/format.js";

const STALE_SECONDS = 10;

export class Badge {
  constructor(app) {
    this.app = app;
    this.status = element("span", { class: "status" });
    this.facts = element("span", { class: "facts" });
    this.pause = iconButton("pause", "Pause (space)", () => app.togglePause());
    this.root = element("div", { class: "badge", role: "status" }, this.status, this.facts, this.pause);
    setInterval(() => this.show(), 1000);
  }

  /** What the run says of itself, and how long ago it said so. */
  show() {
    const { head, headAt, isPaused } = this.app;
    if (!head) return;
    const since = this.app.source.isLive ? (performance.now() - headAt) / 1000 : 0;
    const status = head.status === "running" && head.age + since > STALE_SECONDS ? "stale" : head.status;
    this.root.dataset.status = isPaused ? "paused" : status;
    this.status.textContent = isPaused ? "paused" : status;
    const facts = [`step ${count(head.last_step)}`];
    if (head.tick_age !== null && this.app.source.isLive) facts.push(`${duration(head.tick_age + since)} ago`);
    if (head.dropped) facts.push(`${count(head.dropped)} dropped`);
    if (typeof head.overhead === "number") facts.push(`${(100 * head.overhead).toFixed(1)} % overhead`);
    this.facts.textContent = facts.join(" · ");
    this.pause.hidden = !this.app.source.isLive || head.status !== "running";
    this.pause.setAttribute("aria-pressed", String(isPaused));
  }
}
