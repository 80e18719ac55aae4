// === Elements ===
// Everything shown is text, never markup: rules and keys may have any name. The policy of the page
// has the browser refuse markup too.

const $ = (id) => document.getElementById(id);

// Makes an element. Attributes that begin with "on" are listeners; children that are strings
// become text.
function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

// Replaces the children of an element.
function fill(element, ...children) {
  element.replaceChildren(...children.flat(9).filter((it) => it != null && it !== false));
}

// Tells a screen reader, without moving the focus.
function announce(words) {
  $("announcements").textContent = words;
}

const button = (words, onclick, name, more) =>
  h("button", {type: "button", class: name, onclick, ...more}, words);

const tag = (words, name) => h("span", {class: `tag ${name || ""}`}, words);

// A table: headings are [words, class]; rows are lists of cells, of which the first names the row.
// On a phone, a row is a list, and each cell has its heading before it.
function table(caption, headings, rows, name) {
  const cell = (made, at) => made instanceof HTMLTableCellElement ? made
    : at === 0 ? h("th", {scope: "row", class: headings[0][1]}, made)
      : h("td", {class: headings[at][1], "data-label": `${headings[at][0]}: `}, made);
  return h("div", {class: "scroll"}, h("table", {class: `stack ${name || ""}`},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, headings.map(([words, look]) =>
      h("th", {scope: "col", class: look}, words)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map(cell))))));
}

// A table of a list, the latest first, and a button for earlier ones: `load` takes `next` of the page
// before, and finds a page. `first` is the one that it found without. `name` is that of the list.
function pagedTable(headings, row, name, first, load) {
  const shown = table("The latest first", headings, first[name].map(row));
  let {next} = first;
  const more = button("Show more", async () => {
    const page = await load(next);
    next = page.next;
    const added = table("", headings, page[name].map(row));
    shown.querySelector("tbody").append(...added.querySelectorAll("tbody tr"));
    more.hidden = next == null;
  });
  more.hidden = next == null;
  return [shown, more];
}

// A list of terms: [term, value].
function facts(items) {
  return h("dl", {class: "facts"}, items.map(([term, value]) =>
    [h("dt", {}, term), h("dd", {}, value)]));
}

// Disables the buttons of a form while `work` runs, so that nothing is sent twice.
async function busy(form, work) {
  if (form.ariaBusy === "true") return;
  form.ariaBusy = "true";
  const buttons = [...form.querySelectorAll("button:enabled")];
  buttons.forEach((it) => { it.disabled = true; });
  try {
    await work();
  } finally {
    form.ariaBusy = "false";
    buttons.forEach((it) => { it.disabled = false; });
  }
}

// Moves the focus by `step` among the links of the list that is shown.
function moveInList(step) {
  const links = [...document.querySelectorAll("[data-list] tbody th a")];
  if (!links.length) return false;
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step;
  const link = links[Math.max(0, Math.min(next, links.length - 1))];
  link.focus();
  link.scrollIntoView({block: "nearest"});
  return true;
}
