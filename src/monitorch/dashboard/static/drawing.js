// Whether everything is drawn for the current state of the page, for tests and screenshots.
//
// <html data-drawn="7"> means that it is, for the seventh time. While the attribute is missing, something is pending:
// an answer, a frame, or a panel that has just been resized.

export class Drawing {
  /** @param {HTMLElement} root */
  constructor(root = document.documentElement) {
    this.root = root;
    this.times = 0;
    this.open = 0;
    /** @type {Set<() => void>} */
    this.tasks = new Set();
  }

  /** Something begins that will change the page; call what is returned when it has. */
  begin() {
    this.open++;
    delete this.root.dataset.drawn;
    return () => {
      this.open--;
      this.settle();
    };
  }

  /**
   * Draw once before the next frame, however often this is called; a hidden page has no frames.
   * @param {() => void} task
   */
  soon(task) {
    if (this.tasks.has(task)) return;
    this.tasks.add(task);
    const end = this.begin();
    nextFrame(() => {
      this.tasks.delete(task);
      try {
        task();
      } finally {
        end();
      }
    });
  }

  /** Sizes that follow from what was drawn are known a frame later, and may ask for more. */
  settle() {
    const { times } = this;
    if (this.open) return;
    nextFrame(() =>
      nextFrame(() => {
        if (this.open || this.times !== times) return;
        this.times++;
        this.root.dataset.drawn = String(this.times);
      }),
    );
  }
}

/** @param {() => void} task */
function nextFrame(task) {
  if (document.hidden) setTimeout(task);
  else requestAnimationFrame(task);
}
