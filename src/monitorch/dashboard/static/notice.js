// A line on top of the page that says what is wrong or, for a moment, what was done.

import { element, write } from "page/dom.js";

const PASSING_MILLISECONDS = 4000;

export class Notice {
  constructor() {
    /** @type {number | null} */
    this.passing = null;
    this.root = element("div", { class: "notice", role: "alert", hidden: true });
  }

  /**
   * Show a text until the next one; a passing text stays for its full time.
   * @param {string} text
   * @param {boolean} isPassing
   */
  tell(text, isPassing = false) {
    if (!isPassing && this.passing) return;
    write(this.root, text);
    this.root.hidden = !text;
    if (!isPassing) return;
    clearTimeout(this.passing ?? undefined);
    this.passing = setTimeout(() => {
      this.passing = null;
      this.tell("");
    }, PASSING_MILLISECONDS);
  }

  async copyLink() {
    try {
      await navigator.clipboard.writeText(location.href);
      this.tell("The link is copied.", true);
    } catch {
      this.tell("The browser does not allow copying; the address bar has the link.", true);
    }
  }
}
