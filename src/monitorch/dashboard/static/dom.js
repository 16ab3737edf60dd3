// Elements. Text only ever becomes text: names of layers and runs come from strangers.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  pin: "M8 1.5l1.9 4 4.4.6-3.2 3.1.8 4.4L8 11.5l-3.9 2.1.8-4.4L1.7 6.1l4.4-.6z",
  link: "M6.5 9.5l3-3M7 4.5l1.6-1.6a2.5 2.5 0 013.5 3.5L10.5 8M9 11.5l-1.6 1.6a2.5 2.5 0 01-3.5-3.5L5.5 8",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.2v9.6l8-4.8z",
  down: "M8 2.5v7.5M4.8 7l3.2 3.2L11.2 7M3 13.5h10",
  close: "M4 4l8 8M12 4l-8 8",
  help: "M5.8 6a2.2 2.2 0 114 1.3c-.8.7-1.8 1-1.8 2.2M8 12v.6",
  sun: "M8 5a3 3 0 100 6 3 3 0 000-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  moon: "M13 9.6A5.6 5.6 0 016.4 3 5.6 5.6 0 1013 9.6z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
};

/** Make an element; `text` is its text, `on…` its listeners, the rest are attributes. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function icon(name) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 16 16");
  drawing.setAttribute("class", "icon");
  drawing.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  drawing.append(path);
  return drawing;
}

/** A button with a drawing, whose name is what screen readers and the mouse are told. */
export function iconButton(name, label, onclick, properties = {}) {
  return element(
    "button",
    { type: "button", class: "icon-button", title: label, "aria-label": label, onclick, ...properties },
    icon(name),
  );
}

/** A few choices side by side; calls back with the chosen value. */
export function choice(label, options, onchoose) {
  const group = element("div", { class: "choice", role: "radiogroup", "aria-label": label });
  const buttons = Object.entries(options).map(([value, text]) =>
    element("button", { type: "button", role: "radio", "data-value": value, text, onclick: () => onchoose(value) }),
  );
  group.append(...buttons);
  group.show = (value) => {
    for (const button of buttons) button.setAttribute("aria-checked", String(button.dataset.value === value));
  };
  return group;
}

/** Save a panel, as a picture or as numbers; calls back with "PNG" or "CSV". */
export function saveButtons(what, onsave) {
  const button = (kind, as) =>
    element("button", {
      type: "button",
      class: "mini",
      text: kind,
      title: `Save ${what} as ${as}`,
      onclick: () => onsave(kind),
    });
  const buttons = [button("PNG", "a picture"), button("CSV", "numbers")];
  return element("div", { class: "save", role: "group", "aria-label": `Save ${what}` }, icon("down"), ...buttons);
}

/** The list of a select, in groups; it keeps its nodes while nothing changes. */
export function fillSelect(select, groups, chosen) {
  const wanted = JSON.stringify(groups);
  if (select.dataset.options !== wanted) {
    select.dataset.options = wanted;
    select.replaceChildren(
      ...groups.flatMap(([label, options]) => {
        const nodes = options.map(([value, text]) => element("option", { value, text }));
        if (!label) return nodes;
        return [element("optgroup", { label }, ...nodes)];
      }),
    );
  }
  if (document.activeElement !== select || select.value !== chosen) select.value = chosen;
}

/** Hand a file to the browser's downloads. */
export function download(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_") });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
