// Charts one below, or beside, the other; they are kept while their kind stays.

import { Chart } from "page/chart.js";
import { element } from "page/dom.js";

export class ChartList {
  constructor(app, name) {
    this.app = app;
    this.charts = new Map();
    this.root = element("div", { class: name });
  }

  show(specs, sources, layer, ruler) {
    const keys = new Set(specs.map((spec) => spec.key));
    for (const [key, chart] of this.charts) {
      if (keys.has(key)) continue;
      chart.remove();
      this.charts.delete(key);
    }
    specs.forEach((spec, place) => {
      if (!this.charts.has(spec.key)) this.charts.set(spec.key, new Chart(this.app));
      const chart = this.charts.get(spec.key);
      if (this.root.children[place] !== chart.root)
        this.root.insertBefore(chart.root, this.root.children[place] ?? null);
      chart.show(spec, sources, layer, ruler);
    });
  }
}
