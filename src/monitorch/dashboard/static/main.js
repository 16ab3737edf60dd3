// The entry point: shows the numbers inside the page (a report), or else those of the server.

import { App } from "page/app.js";
import { EmbeddedSource } from "page/embedded_source.js";
import { RemoteSource } from "page/remote_source.js";

async function begin() {
  const embedded = document.getElementById("data");
  const source = embedded ? await EmbeddedSource.read(embedded.textContent ?? "") : new RemoteSource();
  new App(source, /** @type {HTMLElement} */ (document.getElementById("page"))).start();
}

begin();
