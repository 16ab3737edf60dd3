// The numbers of the whole run: losses large, everything else small beside them.

import { ChartList } from "page/chart.js";
import { isRepeated } from "page/curves.js";
import { element } from "page/dom.js";
import { isLoss, WHOLE_RUN } from "page/names.js";

/** @import { App } from "page/app.js" */
/** @import { Ruler } from "page/axis.js" */
/** @import { Source } from "page/curves.js" */
/** @import { ChartSpec } from "page/names.js" */

export class Overview {
  /** @param {App} app */
  constructor(app) {
    this.large = new ChartList(app, "large-charts");
    this.small = new ChartList(app, "small-charts");
    this.root = element("div", { class: "strip" }, this.large.root, this.small.root);
  }

  /**
   * @param {ChartSpec[]} specs
   * @param {Source[]} sources
   * @param {Ruler} ruler
   */
  show(specs, sources, ruler) {
    const losses = specs.filter(({ tag }) => isLoss({ tag }));
    // frameworks log the losses that the callback has shown already
    const others = specs.filter((spec) => !isLoss(spec) && !isRepeated(spec, losses, sources));
    for (const [list, part] of /** @type {const} */ ([
      [this.large, losses],
      [this.small, others],
    ])) {
      list.root.hidden = !part.length;
      list.show(part, sources, WHOLE_RUN, ruler);
    }
    this.root.classList.toggle("has-loss", losses.length > 0 && others.length > 0);
  }
}
