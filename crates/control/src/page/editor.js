// === The editor of a rule ===

async function ruleView(main, {id, query, signal}) {
  if (id === "new") return newRule(main, signal);
  if (query.has("set")) return ruleOfSet(main, id, query.get("set"), signal);
  const at = `/v1/rules/${encodeURIComponent(id)}`;
  const [{body, etag}, domains, sets] = await Promise.all([call("GET", at, {signal}),
    allDomains(signal), ownSets(signal)]);
  const {owner, ...rule} = body;
  owners.set(body.domain, ownerOf(domains.find((it) => it.domain === body.domain)) || owner);
  openEditor(main, rule, etag, {sets});
  await showHistory(main, id, signal);
}

// The objects of Kubernetes that define domains, as far as rules of them were opened: those are
// theirs alone.
const owners = new Map();
const mayEdit = ({domain}) => mayWrite() && !owners.get(domain);

// A rule that is not there yet, in the domain that is most likely meant.
async function newRule(main, signal) {
  const [domains, sets] = await Promise.all([allDomains(signal), ownSets(signal)]);
  const free = domains.filter((it) => !ownerOf(it)).map((it) => it.domain);
  const names = session.caller.domains || free;
  const rule = {domain: names.length === 1 ? names[0] : "", entries: [{key: ""}],
    rate_limit: {unit: "minute"}};
  openEditor(main, rule, undefined, {sets});
  main.append(h("datalist", {id: "domains"}, names.map((value) => h("option", {value}))));
}

// Shows the form for a rule. What was typed before and not saved is there again.
function openEditor(main, rule, etag, of = {sets: []}) {
  const key = of.key || rule.id || "new", kept = unsaved.get(key);
  const editor = {key, rule: kept?.rule || rule, etag: kept ? kept.etag : etag, main, of};
  const {form} = Object.assign(editor, editorForm(editor));
  if (kept) restore(editor, kept.raw);
  const title = rule.id ? entriesWords(rule.entries) : "New rule";
  fill(main, h("section", {id: "editor"}, h("div", {class: "bar"},
    h("h2", {tabindex: -1}, title), kept && tag("not saved", "warn"),
    h("a", {href: "#/rules", id: "close"}, "Close")), form));
  form.addEventListener("input", () => remember(editor));
  form.addEventListener("click", ({target}) => {
    if (target.closest(".entries button")) remember(editor);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); save(editor); });
  showKind(editor);
}

function editorForm(editor) {
  const {rule} = editor, isNew = !rule.id;
  const inputs = settingInputs(settingsOf(rule));
  const domain = textInput(rule.domain, {readonly: !isNew, list: "domains"});
  const entries = h("div", {id: "entries", class: "entries"},
    rule.entries.map((it) => entryRow(it, isNew)));
  const reason = textInput("", {maxlength: 1000, placeholder: "for the history"});
  const problem = h("div", {id: "problem", class: "wide"});
  const where = whereChoice(editor.of.sets, editor.of.chosen);
  const limits = h("div", {class: "fields", id: "limit-fields"},
    LIMIT_FIELDS.map(([name, label, , hint]) =>
      field(`rate_limit.${name}`, label, inputs[name], hint)),
    h("div", {class: "wide", "data-faults": "rate_limit"}));
  const form = h("form", {novalidate: true}, problem,
    h("div", {class: "fields"}, field("domain", "Domain", domain),
      field("kind", "What it sets", inputs.kind)),
    h("fieldset", {}, h("legend", {}, "Entries, from the top of the rule file"), entries,
      h("div", {"data-faults": "entries"}),
      isNew && button("Add an entry", () => addEntry(entries), "quiet")),
    h("fieldset", {}, h("legend", {class: "hidden"}, "Limit"), limits),
    h("div", {class: "fields"}, FLAGS.map(([name, meaning]) => h("div", {class: "wide"},
      field(name, name, inputs[name], meaning)))),
    furtherField(inputs), h("div", {class: "fields"},
      field("where", "Save in", where), h("div", {class: "wide"}, field("reason", "Why", reason))),
    editorActions(editor));
  if (!mayEdit(rule)) form.querySelectorAll("input, select, textarea").forEach(lock);
  inputs.kind.addEventListener("change", () => showKind(editor));
  return {form, inputs, domain, entries, reason, problem, where};
}

function lock(input) {
  input.readOnly = true;
  input.disabled = input.matches("select, [type=checkbox]");
}

function furtherField({further: input}) {
  const hint = 'All else that a rule file may say, as in {"rate_limit": {"name": "login"}}.';
  const details = h("details", {class: "wide", open: input.value !== ""},
    h("summary", {}, "Further settings"), field("further", "As JSON", input, hint));
  return h("fieldset", {}, details);
}

function editorActions(editor) {
  if (!mayWrite()) return h("p", {class: "soft"}, "The token may only read.");
  const owner = owners.get(editor.rule.domain);
  if (owner) {
    return h("p", {class: "attention", id: "owned"}, `The object ${owner} of Kubernetes defines this `
      + "domain: change its rules there.");
  }
  return h("div", {class: "actions"},
    h("button", {type: "submit", class: "main", id: "save"}, "Save draft"),
    editor.rule.id && button("Remove the rule", () => removeRule(editor), "danger", {id: "remove"}),
    button("Discard what was typed", () => discard(editor), "",
      {id: "discard", hidden: !unsaved.has(editor.key)}),
    h("span", {class: "soft"}, "Pods keep what is published until you publish."));
}

function entryRow({key, value}, isNew) {
  const row = h("div", {class: "entry"},
    field("key", "Key", textInput(key, {readonly: !isNew})),
    field("value", "Value", textInput(value, {readonly: !isNew}),
      isNew ? "empty: each value counts apart; * stands for any text" : ""),
    isNew && button("Remove", () => {
      if (row.parentElement.children.length > 1) row.remove();
    }, "quiet"));
  return row;
}
function addEntry(entries) {
  entries.append(entryRow({key: ""}, true));
  entries.lastElementChild.querySelector("input").focus();
}

// Shows only the fields that the kind has.
function showKind({form, inputs}) {
  const kind = inputs.kind.value;
  form.querySelector("#limit-fields").parentElement.hidden = kind === "none";
  for (const [name] of LIMIT_FIELDS) {
    inputs[name].closest(".field").hidden = kind === "unlimited" && name !== "failure_mode";
  }
}

// What is typed in each row of the entries.
const entriesTyped = ({entries}) => [...entries.children]
  .map((row) => [...row.querySelectorAll("input")].map((it) => it.value));

// What the form says, as the API takes it. Names the rows of the entries as faults will.
function ruleTyped(editor) {
  const {entries, domain, inputs} = editor;
  [...entries.children].forEach((row, at) => ["key", "value"].forEach((name, column) => {
    const place = row.querySelectorAll(".field")[column];
    place.querySelector("input").dataset.field = `entries[${at}].${name}`;
    place.querySelector("[data-faults]").dataset.faults = `entries[${at}].${name}`;
  }));
  const read = entriesTyped(editor).map(([key, value]) => value ? {key, value} : {key});
  return {domain: domain.value.trim(), entries: read, ...settingsTyped(inputs)};
}

// Keeps what is typed until it is saved, also while another part of the page is shown.
function remember(editor) {
  const {rule, etag, inputs, domain, reason} = editor;
  const values = Object.entries(inputs).map(([name, it]) =>
    [name, it.type === "checkbox" ? it.checked : it.value]);
  const raw = {values, entries: entriesTyped(editor), domain: domain.value, reason: reason.value,
    where: editor.where.value};
  unsaved.set(editor.key, {rule, etag, raw});
  editor.form.querySelector("#discard").hidden = false;
}
function restore(editor, {values, entries, domain, reason, where}) {
  for (const [name, value] of values) {
    const input = editor.inputs[name];
    if (input.type === "checkbox") input.checked = value;
    else input.value = value;
  }
  editor.inputs.further.closest("details").open ||= editor.inputs.further.value !== "";
  editor.domain.value = domain;
  editor.reason.value = reason;
  // A set that was submitted meanwhile is no choice.
  editor.where.value = where;
  if (editor.where.selectedIndex < 0) editor.where.value = "";
  const isNew = !editor.rule.id;
  fill(editor.entries, entries.map(([key, value]) => entryRow({key, value}, isNew)));
}
function discard(editor) {
  unsaved.delete(editor.key);
  show();
}
