// The moment that the mouse points at, shared by all panels. Steps are the one axis that all of them know.

export class Cursor extends EventTarget {
  step = null;

  /** Point at a step, or at none; `from` is who says so and need not listen. */
  point(step, from) {
    if (step === this.step) return;
    this.step = step;
    this.dispatchEvent(new CustomEvent("move", { detail: from }));
  }
}
