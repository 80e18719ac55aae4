// === Change sets: changes of one's own, beside the shared draft ===

const isMine = ({author: by}) => by === session.caller.name;
const allSets = (signal) => getAll("/v1/change-sets", "change_sets", {from: "before", signal});
const ownSets = async (signal) => (await allSets(signal)).filter(isMine);

// A set with all of its changes.
async function wholeSet(id, signal) {
  const path = `/v1/change-sets/${encodeURIComponent(id)}`, set = await get(path, null, signal);
  const rest = set.next == null ? []
    : await getAll(path, "changes", {query: {after: set.next}, signal});
  return {...set, changes: [...set.changes, ...rest]};
}

async function setsView(main, {signal}) {
  const sets = await allSets(signal);
  const row = (it) => [h("a", {href: `#/change-sets/${it.id}`}, it.name), isMine(it) ? "you"
    : author(it.author), namesOf(it.domains), count(it.rules), time(it.created_at)];
  fill(main, h("section", {}, h("div", {class: "tools"}, h("h2", {tabindex: -1}, "Change sets")),
    h("p", {class: "soft"}, "Changes of your own, which the shared draft does not have before you "
      + "submit them. To begin one, save a rule in “a new change set of mine”."),
    sets.length ? h("div", {"data-list": true}, table("The latest first", [["change set", "name"],
      ["by"], ["domains"], ["rules", "n"], ["begun"]], sets.map(row)))
      : h("p", {class: "soft"}, "There is none.")));
}

async function setView(main, {id, signal}) {
  const set = await wholeSet(id, signal);
  const mayChange = mayWrite() && (isMine(set) || session.caller.access === "admin");
  fill(main, h("section", {}, h("div", {class: "bar"},
    h("h2", {tabindex: -1}, `Change set ${set.name}`),
    h("a", {href: "#/change-sets", id: "close"}, "Close")),
  facts([["by", isMine(set) ? "you" : set.author], ["begun", time(set.created_at)]]),
  mayChange && submitForm(set)),
  h("section", {id: "set-changes"}, h("h3", {}, "What it changes"), set.changes.length
    ? set.changes.map((it) => setChange(set, it, mayChange)) : h("p", {class: "soft"}, "Nothing.")));
}

// One change, and what stands against it.
function setChange(set, it, mayChange) {
  const {rule, domain, entries, before, after, current} = it, place = h("div");
  const at = `/v1/change-sets/${set.id}/rules`;
  const act = (method, path, body) => async () => {
    try {
      await call(method, path, {body});
      show();
    } catch (problem) {
      showProblem(place, problem);
    }
  };
  const keep = act("PUT", at, {domain, entries, settings: after, rebase: true});
  const conflict = () => h("div", {class: "attention", "data-conflict": rule},
    h("p", {}, "Somebody changed this rule in the shared draft meanwhile:"),
    settingChanges(before, current), h("p", {}, "With this change it would be:"),
    settingChanges(current, after), h("div", {class: "actions"},
      mayChange && button("Keep mine all the same", keep)));
  const words = after ? before ? "changed" : "added" : "removed", name = entriesWords(entries);
  const href = `#/rules/${rule}?set=${set.id}`;
  return h("div", {class: "change", "data-change": words}, h("span", {class: "soft"}, `${domain} › `),
    h("span", {class: words === "changed" ? "warn" : words}, `${words} `),
    h("span", {class: "name"}, h("a", {href}, name)), settingChanges(before, after),
    it.is_conflict && conflict(), place, mayChange && button("Take it out",
      act("DELETE", `${at}/${rule}`), "quiet", {"aria-label": `Take it out: ${domain} ${name}`}));
}

function submitForm(set) {
  const reason = textInput("", {maxlength: 1000}), problem = h("div");
  const work = (method, path, words) => busy(form, async () => {
    try {
      const {body} = await call(method, path, {query: {reason: reason.value.trim()}});
      location.hash = body.domains ? "#/changes" : "#/change-sets";
      showNotice(words(body));
      refreshChanged();
    } catch (fault) {
      showProblem(problem, fault, fault.kind === "conflicts" ? () => show() : null);
    }
  });
  const at = `/v1/change-sets/${set.id}`;
  const form = h("form", {novalidate: true}, problem,
    field("reason", "Why", reason, "for the history of the rules"),
    h("div", {class: "actions"}, h("button", {type: "submit", class: "main", id: "submit-set"},
      "Submit to the shared draft"),
    button("Remove the change set", () => work("DELETE", at,
      () => `The change set ${set.name} is removed.`), "danger", {id: "remove-set"}),
    h("span", {class: "soft"}, "Pods keep what is published until you publish.")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    work("POST", `${at}/submit`,
      ({changed}) => `${plural(changed, "rule")} of ${set.name} changed in the shared draft.`);
  });
  return form;
}

// Where the editor of a rule saves: the shared draft, or a set of one's own.
function whereChoice(sets, chosen) {
  return choice([["", "the shared draft"], ...sets.map((it) => [it.id, `my change set “${it.name}”`]),
    ["new", "a new change set of mine"]], chosen);
}

// Opens a rule as a change set has it.
async function ruleOfSet(main, id, set_id, signal) {
  const [set, sets] = await Promise.all([wholeSet(set_id, signal), ownSets(signal)]);
  const change = set.changes.find((it) => it.rule === id);
  if (!change) throw new Problem(404, {detail: "the change set does not change this rule"});
  const {domain, entries, before, after, current} = change;
  const rule = {...(current && {id}), domain, entries, ...(after || before)};
  openEditor(main, rule, "*", {sets, chosen: set.id, key: `${id} of ${set.id}`});
}

// Saves what is typed in a set; without settings, the set removes the rule.
async function saveInSet(editor, {domain, entries}, settings) {
  const {where, reason} = editor;
  if (where.value === "new") {
    const name = reason.value.trim() || `${domain} ${entriesWords(entries)}`;
    const {body} = await call("POST", "/v1/change-sets", {body: {name: name.slice(0, 60)}});
    where.append(h("option", {value: body.id}, `my change set “${body.name}”`));
    where.value = body.id;
  }
  const at = `/v1/change-sets/${where.value}`;
  await call("PUT", `${at}/rules`, {body: {domain, entries, settings}});
  unsaved.delete(editor.key);
  location.hash = `#/change-sets/${where.value}`;
  showNotice("Saved in the change set. The shared draft stays as it is until you submit it.");
}
