// === The changes of the draft: choose domains, look, dry run, publish ===

const NAMES_MAX = 8;

// A reason that was typed, and domains that were chosen or left out by hand, so that they are there
// when the draft is looked at again.
let reason_typed = "";
const chosen_by_hand = new Map();

async function changesView(main, {signal}) {
  fill(main, h("div", {class: "bar"}, h("h2", {tabindex: -1}, "Changes that are not published")));
  const asked = await approvalsOf(signal);
  const [domains, found, open] = await Promise.all([allDomains(signal), differences({}, signal),
    getAll("/v1/rollouts", "rollouts", {query: {open: true}, from: "before", signal})]);
  const changed = domains.filter((it) => it.is_changed);
  refreshChanged(domains);
  if (!changed.length) {
    return main.append(h("section", {}, h("p", {},
      "Nothing to publish: the draft is what is published.")));
  }
  const rows = changed.map((it) => changedRow(it, open, found));
  const chosen = chosenDomains(rows, open, signal);
  main.append(...[chosen.section, differencesBox(found)].flat(9).filter((it) => it));
  if (asked.length) main.append(approvalsSection(asked));
  if (!mayWrite()) return;
  main.append(chosen.checked, ...chosen.forms);
  await chosen.check();
}

// A domain with changes: whether it may be chosen, and whether it is.
function changedRow(domain, open, found) {
  const name = domain.domain, mine = session.caller.name, by = domain.changed_by || [];
  const rollout = open.find((it) => it.domains.some((that) => that.domain === name));
  const isMine = by.length > 0 && by.every((it) => it === mine);
  const box = checkbox(false);
  box.disabled = Boolean(rollout || ownerOf(domain));
  box.checked = !box.disabled && (chosen_by_hand.get(name) ?? isMine);
  return {name, domain, by, box, rollout, differs: found.domains.find((it) => it.domain === name),
    state: h("span"), faults: []};
}

// Draws a row again that was found to have faults.
function refuse(row, faults) {
  row.faults = faults;
  row.box.checked = false;
  row.box.disabled = true;
  fill(row.state, tag(plural(faults.length, "fault"), "bad"));
}

// The domains to choose from, what the compiler says of those that are, and the forms that publish
// them or begin a rollout. These are made once, so that what is typed stays while others are chosen.
function chosenDomains(rows, open, signal) {
  const selection = {domains: [], etag: null, checking: null};
  const checked = h("div", {id: "checked"}), place = h("div");
  const publishing = publishSection(selection);
  const forms = rows.some((it) => !it.box.disabled)
    ? [dryRunSection(), beginSection(selection), publishing] : [];
  let round = new AbortController();
  const check = async () => {
    round.abort();
    round = new AbortController();
    selection.domains = rows.filter((it) => it.box.checked).map((it) => it.name);
    selection.etag = null;
    publishing.tell();
    const both = AbortSignal.any([signal, round.signal]);
    selection.checking = checkDraft(checked, rows, selection, both);
    await selection.checking;
    publishing.tell();
  };
  for (const row of rows) {
    row.box.addEventListener("change", () => {
      chosen_by_hand.set(row.name, row.box.checked);
      check();
    });
  }
  const all = () => {
    const free = rows.filter((it) => !it.box.disabled);
    const is = free.some((it) => !it.box.checked);
    free.forEach((it) => { it.box.checked = is; chosen_by_hand.set(it.name, is); });
    check();
  };
  const section = h("section", {id: "choosing"}, changedTable(rows, place),
    mayWrite() && rows.length > 1 && h("div", {class: "actions"},
      button("Choose all, or none", all, "", {id: "choose-all"})), place,
    open.length > 0 && waiting(open));
  return {section, checked, forms, check};
}

function changedTable(rows, place) {
  const headings = [["domain", "name"], ["what differs"], ["changed by"], ["last"], ["state"],
    ...(mayWrite() ? [["undo"]] : [])];
  const name = (row) => mayWrite() ? h("span", {class: "field check"}, idOf(row.box),
    h("label", {for: row.box.id}, row.name)) : row.name;
  const state = (row) => [row.rollout && tag(`rollout ${row.rollout.rollout}`, "warn"),
    ownerOf(row.domain) && tag(`object ${ownerOf(row.domain)}`), row.state];
  return table("Domains with changes; those that only this token changed are chosen at first",
    headings, rows.map((row) => [name(row), row.differs ? differenceWords(row.differs) : "",
      authors(row.by), row.domain.changed_at ? time(row.domain.changed_at) : "", state(row),
      ...(mayWrite() ? [!ownerOf(row.domain) && button("Discard …",
        () => askToDiscard(place, row.name), "quiet danger",
        {"aria-label": `Discard the changes of ${row.name}`})] : [])]));
}
const authors = (names) =>
  names.map((it, at) => [at > 0 && ", ", it === session.caller.name ? "you" : author(it)]);

// Some of the names, and how many there are besides.
function namesOf(names) {
  const rest = names.length - NAMES_MAX;
  return rest > 0 ? `${names.slice(0, NAMES_MAX).join(", ")} and ${count(rest)} more`
    : names.join(", ");
}

// What keeps domains from being published.
const waiting = (open) => h("div", {class: "attention", id: "under-way"}, open.map((it) => h("p", {},
  h("a", {href: `#/rollouts/${it.rollout}`}, `Rollout ${it.rollout}`), " is under way. Until it "
    + `ends, none of its domains can be published: ${namesOf(it.domains.map((of) => of.domain))}.`)));

// Compiles what is chosen. Domains with faults are left out, and the others are checked again.
async function checkDraft(place, rows, selection, signal) {
  const faults = () => rows.filter((it) => it.faults.length).map(faultsBox);
  while (selection.domains.length) {
    try {
      const {body} = await call("POST", "/v1/check", {body: {domains: selection.domains}, signal});
      Object.assign(selection, {etag: body.etag, rules: body.rules});
      return fill(place, faults(), warningsBox(body.warnings));
    } catch (problem) {
      if (signal.aborted) return;
      const of = (name) => problem.errors?.filter((it) => it.domain === name) || [];
      const faulty = rows.filter((it) => it.box.checked && of(it.name).length);
      if (!faulty.length) return showProblem(place, problem, () => show());
      faulty.forEach((row) => refuse(row, of(row.name)));
      const isFaulty = (name) => faulty.some((it) => it.name === name);
      selection.domains = selection.domains.filter((name) => !isFaulty(name));
    }
  }
  fill(place, faults());
}

const faultsBox = ({name, faults}) => h("div", {class: "attention problem", "data-faulty": name},
  h("h3", {}, `▲ ${name} cannot be published`), h("ul", {}, faults.slice(0, 50).map(faultItem)),
  h("p", {class: "soft"}, "The other domains can. Mend what is named, or discard the changes."));

function warningsBox(warnings) {
  if (!warnings.length) return "";
  return h("div", {class: "attention"}, h("h3", {}, plural(warnings.length, "warning")),
    h("ul", {}, warnings.slice(0, 50).map(faultItem)));
}

function publishSection(selection) {
  const reason = textInput(reason_typed, {id: "reason", maxlength: 1000, required: true});
  reason.addEventListener("input", () => { reason_typed = reason.value; });
  const problem = h("div"), accepted = h("p", {class: "good", role: "status"});
  const main = h("button", {type: "submit", class: "main", id: "publish"});
  const names = h("span", {class: "soft"});
  const form = h("form", {novalidate: true}, problem, accepted,
    field("reason", "Why", reason, "versions and the audit log show it"),
    h("div", {class: "actions"}, main, names));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await selection.checking;
    if (selection.etag) publish(form, problem, selection);
  });
  const section = h("section", {id: "publishing"}, h("h3", {}, "Publish"), form);
  section.tell = () => {
    const {domains, etag, rules} = selection, words = plural(domains.length, "domain");
    main.textContent = domains.length ? `Publish ${words}` : "Publish";
    main.disabled = !domains.length;
    accepted.textContent = etag ? `● The compiler accepts it: ${plural(rules, "rule")} of ${words}.`
      : domains.length ? "" : "Choose domains above.";
    names.textContent = namesOf(domains);
  };
  return section;
}

async function publish(form, place, {domains, etag}, skips_approvals) {
  const reason = reason_typed.trim();
  if (lacksReason(form, reason)) return;
  await busy(form, async () => {
    try {
      const {body} = await call("POST", "/v1/publish", {body: {domains}, query: {reason,
        ...(skips_approvals && {skip_approvals: true})}, headers: {"if-match": etag}});
      reason_typed = "";
      chosen_by_hand.clear();
      published(`Version ${body.version} is published.`, body.version);
    } catch (problem) {
      const isMoved = [409, 412].includes(problem.status);
      const again = () => isMoved ? show() : publish(form, place, {domains, etag});
      const skips = problem.body?.needed && isAdmin() && button("Publish without approvals",
        () => publish(form, place, {domains, etag}, true), "danger");
      showProblem(place, problem, again, skips);
      if (isMoved) place.querySelector(".problem > .actions button").textContent = "Look at the draft again";
    }
  });
}

// Goes to the pods, which show who runs the version.
function published(words, version) {
  location.hash = "#/pods";
  showNotice(words, h("a", {href: `#/versions/${version}`}, "Look at it, or roll back"));
  refreshChanged();
}

// Shows what a domain would lose, and loses it only then: exactly what was shown.
async function askToDiscard(place, domain) {
  try {
    const found = await differences({domain});
    const reason = textInput("", {maxlength: 1000}), problem = h("div");
    const heading = h("h3", {tabindex: -1}, `Discard the changes of ${domain}?`);
    const form = h("form", {novalidate: true}, problem, field("reason", "Why", reason,
      "for the history"), h("div", {class: "actions"},
      h("button", {type: "submit", class: "danger", id: "discard-draft"}, "Discard these changes"),
      button("Keep them", () => { fill(place); $("choose-all")?.focus(); }, "",
        {id: "keep-draft"})));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      discardDraft(form, problem, domain, found.etag, reason.value.trim());
    });
    fill(place, h("section", {id: "discarding"}, heading,
      h("p", {}, "The draft becomes what is published. What is lost is listed below: "
        + `${found.domains.map(differenceWords).join() || "no rule"}.`), form, differencesBox(found)));
    heading.focus();
  } catch (problem) {
    showProblem(place, problem);
  }
}

async function discardDraft(form, place, domain, etag, reason) {
  await busy(form, async () => {
    try {
      await call("POST", "/v1/discard", {body: {domains: [domain]}, query: {reason},
        headers: {"if-match": etag}});
      chosen_by_hand.delete(domain);
      await show();
      showNotice(`The changes of ${domain} are discarded: its draft is what is published.`);
    } catch (problem) {
      showProblem(place, problem, problem.status === 412 ? () => show() : null);
    }
  });
}
