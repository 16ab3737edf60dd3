// The panel beside the heat map, with tabs. The tab of all runs also covers the heat map.

import { AlertsTab } from "page/alerts_tab.js";
import { element } from "page/dom.js";
import { LayerTab } from "page/layer_tab.js";
import { RunsTab } from "page/runs_tab.js";
import { TableTab } from "page/table_tab.js";

/** @import { App } from "page/app.js" */
/** @import { Ruler } from "page/axis.js" */
/** @import { Block } from "page/blocks.js" */
/** @import { Source } from "page/curves.js" */
/** @import { HeatModel } from "page/heat_model.js" */
/** @import { ChartSpec } from "page/names.js" */

/**
 * @typedef {{
 *   specs: ChartSpec[], sources: Source[], ruler: Ruler | null, total: Block | undefined, model: HeatModel | null,
 * }} Shown
 */

const NAMES = { layer: "Layer", alerts: "Alerts", runs: "Runs", table: "Table" };

export class Side {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.layer = new LayerTab(app);
    this.alerts = new AlertsTab(app);
    this.runs = new RunsTab(app);
    this.table = new TableTab(app);
    this.tabs = Object.entries({ layer: this.layer, alerts: this.alerts, runs: this.runs, table: this.table }).map(
      ([name, { root }]) => {
        const tab = /** @type {keyof typeof NAMES} */ (name);
        const button = element("button", {
          type: "button",
          role: "tab",
          id: `tab-${tab}`,
          "aria-controls": `panel-${tab}`,
          text: NAMES[tab],
          onclick: () => app.state.set({ tab }),
        });
        root.setAttribute("role", "tabpanel");
        root.setAttribute("aria-labelledby", `tab-${tab}`);
        root.id = `panel-${tab}`;
        return { tab, button, root };
      },
    );
    this.count = element("span", { class: "count", hidden: true });
    this.tabs.find(({ tab }) => tab === "alerts")?.button.append(this.count);
    this.root = element(
      "aside",
      { class: "side panel" },
      element("nav", { role: "tablist", "aria-label": "Details" }, ...this.tabs.map(({ button }) => button)),
      element("div", { class: "side-body" }, ...this.tabs.map(({ root }) => root)),
    );
  }

  /** @param {Shown} shown */
  show({ specs, sources, ruler, total, model }) {
    const { view } = this.app;
    for (const { tab, button, root } of this.tabs) {
      root.hidden = tab !== view;
      button.setAttribute("aria-selected", String(tab === view));
      button.disabled = (this.app.isMissing || this.app.isEmpty) && tab !== "runs";
    }
    const events = this.app.alerts().filter((event) => event.severity !== "info");
    const count = events.length + (this.app.runError() ? 1 : 0);
    this.count.hidden = !count;
    this.count.textContent = count ? String(count) : "";
    if (view === "layer") this.layer.show(specs, sources, ruler);
    else if (view === "alerts") this.alerts.show();
    else if (view === "runs") this.runs.show();
    else this.table.show(total, model);
  }
}
