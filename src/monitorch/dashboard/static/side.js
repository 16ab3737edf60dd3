// The panel beside the heat map, with tabs.

import { AlertsTab } from "page/alerts_tab.js";
import { element } from "page/dom.js";
import { LayerTab } from "page/layer_tab.js";
import { RunsTab } from "page/runs_tab.js";
import { TableTab } from "page/table_tab.js";

export class Side {
  constructor(app) {
    this.app = app;
    this.tabs = {
      layer: new LayerTab(app),
      alerts: new AlertsTab(app),
      runs: new RunsTab(app),
      table: new TableTab(app),
    };
    const names = { layer: "Layer", alerts: "Alerts", runs: "Runs", table: "Table" };
    this.buttons = Object.fromEntries(
      Object.entries(names).map(([tab, text]) => [
        tab,
        element("button", {
          type: "button",
          role: "tab",
          id: `tab-${tab}`,
          "aria-controls": `panel-${tab}`,
          text,
          onclick: () => app.state.set({ tab }),
        }),
      ]),
    );
    for (const [name, tab] of Object.entries(this.tabs)) {
      tab.root.setAttribute("role", "tabpanel");
      tab.root.setAttribute("aria-labelledby", `tab-${name}`);
      tab.root.id = `panel-${name}`;
    }
    this.count = element("span", { class: "count", hidden: true });
    this.buttons.alerts.append(this.count);
    this.root = element(
      "aside",
      { class: "side panel" },
      element("nav", { role: "tablist", "aria-label": "Details" }, ...Object.values(this.buttons)),
      element("div", { class: "side-body" }, ...Object.values(this.tabs).map((tab) => tab.root)),
    );
  }

  show({ specs, sources, ruler, total, model }) {
    const chosen = this.tabs[this.app.state.tab] ? this.app.state.tab : "layer";
    for (const [name, tab] of Object.entries(this.tabs)) {
      tab.root.hidden = name !== chosen;
      this.buttons[name].setAttribute("aria-selected", String(name === chosen));
    }
    const alerts = this.app.alerts().filter((event) => event.severity !== "info");
    this.count.hidden = !alerts.length;
    this.count.textContent = String(alerts.length);
    if (chosen === "layer") this.tabs.layer.show(specs, sources, ruler);
    else if (chosen === "alerts") this.tabs.alerts.show();
    else if (chosen === "runs") this.tabs.runs.show();
    else this.tabs.table.show(total, model);
  }
}
