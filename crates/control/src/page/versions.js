// === Versions: what was published, and the way back ===

async function versionsView(main, {query, signal}) {
  const list = h("div", {"data-list": true}), way = h("span");
  const domain = h("select", {id: "domain-filter"}, h("option", {value: ""}, "all domains"));
  fill(main, h("section", {}, h("div", {class: "tools"}, h("h2", {tabindex: -1}, "Versions"),
    h("label", {for: "domain-filter"}, "Domain"), domain, way), list));
  const domains = await allDomains(signal);
  domain.append(...domains.map((it) => h("option", {value: it.domain}, it.domain)));
  domain.value = query.get("domain") || "";
  domain.addEventListener("change", () => {
    history.replaceState(null, "", `#/versions${queryOf({domain: domain.value})}`);
    listVersions(list, way, domain.value, signal);
  });
  await listVersions(list, way, domain.value, signal);
}

async function listVersions(list, way, domain, signal) {
  const load = (next) => get("/v1/versions", {limit: PAGE, ...(domain && {domain}),
    ...(next && {before: next})}, signal);
  try {
    const first = await load(), {versions} = first;
    fill(way, mayWrite() && wayBack(versions));
    if (!versions.length) return fill(list, h("p", {class: "soft"}, "Nothing is published yet."));
    const headings = [["version", "name"], ["domains"], ["published"], ["by"], ["why"], ["state"],
      ...(mayWrite() ? [["way back"]] : [])];
    fill(list, pagedTable(headings, (it) => versionRow(it, versions, domain), "versions",
      first, load));
  } catch (problem) {
    showProblem(list, problem, () => listVersions(list, way, domain, signal));
  }
}

function versionRow(it, all, domain) {
  const newest = all[0].version, back = takenBack(it, all);
  const href = `#/versions/${it.version}${queryOf({domain})}`;
  return [h("a", {href}, `Version ${it.version}`), domainsOfVersion(it), time(it.at),
    author(it.author), it.reason, [
      it.version === newest && tag(domain ? "in force" : "newest", "good"),
      it.restores && tag(`brings back ${it.restores}`), it.rollout && tag(`rollout ${it.rollout}`),
      back && tag(`taken back by ${back.version}`, "warn")],
    ...(mayWrite() ? [it.version !== newest && h("a", {href,
      "aria-label": `Roll back to version ${it.version}`}, "Roll back …")] : [])];
}

function domainsOfVersion({domains, domain_count: all}) {
  const shown = domains.slice(0, 3), rest = all - shown.length;
  return rest > 0 ? `${shown.join(", ")} and ${count(rest)} more` : shown.join(", ");
}

// Whether two versions are about the same domain.
const touches = (one, other) => one.domains.some((it) => other.domains.includes(it));

// The later version that brought back what was before this one.
const takenBack = (it, all) => all.find((later) => later.restores < it.version
  && it.version < later.version && touches(it, later));

// The version whose rules this one has: itself, or what it brings back.
function origin(it, all) {
  const brought = it.restores
    && all.find((that) => that.version <= it.restores && touches(that, it));
  return brought ? origin(brought, all) : it;
}

// The way to the version before, of the domains of the last one: before the rollout, if that is a
// step of it; and never to one that a roll back has taken back.
function wayBack(all) {
  const [newest] = all, present = newest && origin(newest, all);
  const before = all.find((it) => it.version < present.version && touches(it, newest)
    && (!it.rollout || it.rollout !== newest.rollout) && !takenBack(it, all));
  if (!before) return null;
  const of = new URLSearchParams(newest.domains.map((it) => ["domain", it]));
  return h("a", {href: `#/versions/${before.version}?${of}`, class: "button", id: "way-back"},
    `Roll back to version ${before.version} …`);
}

async function versionView(main, {id, query, signal}) {
  const version = Number(id);
  const [{versions: [it]}, {versions: [newest]}] = await Promise.all([
    get("/v1/versions", {before: version + 1, limit: 1}, signal),
    get("/v1/versions", {limit: 1}, signal)]);
  if (it?.version !== version) throw new Problem(404, {detail: `there is no version ${id}`});
  const isNewest = version === newest.version;
  const changed = await differences({from: version - 1, to: version}, signal);
  fill(main, h("section", {}, h("div", {class: "bar"},
    h("h2", {tabindex: -1}, `Version ${version}`), isNewest && tag("newest", "good"),
    h("a", {href: "#/versions", id: "close"}, "Close")),
  facts([["published", time(it.at)], ["by", it.author], ["why", it.reason || "–"],
    ["domains", it.domains.length ? domainsOfVersion(it) : "–"],
    ...(it.restores ? [["brings back", `version ${it.restores}`]] : [])])),
  // Before what it changed, which may be long.
  !isNewest && mayWrite() && await rollbackSection(version, query.getAll("domain"), signal),
  h("h3", {}, "What it changed"), differencesBox(changed));
}

// The form of a roll back: which of the domains that differ go back, and what that changes in them.
async function rollbackSection(version, wanted, signal) {
  const [found, domains] = await Promise.all([differences({to: version}, signal),
    allDomains(signal)]);
  if (!found.domains.length) return h("p", {class: "soft"}, "What is published has its rules.");
  const owner = (name) => ownerOf(domains.find((it) => it.domain === name));
  const rows = found.domains.map((differs) => {
    const name = differs.domain, box = checkbox(false), by = owner(name);
    box.disabled = Boolean(by);
    box.checked = !by && (wanted.includes(name) || found.domains.length === 1);
    return {name, differs, by, box: idOf(box)};
  });
  return [rollbackForm(version, rows), rollbackBox(rows, found)];
}

function rollbackForm(version, rows) {
  const reason = textInput("", {maxlength: 1000}), lose = checkbox(false), problem = h("div");
  const losing = field("discard_draft", "Lose changes of the draft that are not published", lose);
  losing.hidden = true;
  const main = h("button", {type: "submit", class: "main", id: "roll-back"});
  const chosen = () => rows.filter((it) => it.box.checked).map((it) => it.name);
  const tell = () => {
    const names = chosen(), what = names.length === 1 ? names[0] : plural(names.length, "domain");
    main.textContent = names.length ? `Roll back ${what} to version ${version}` : "Roll back";
  };
  const choices = h("fieldset", {id: "back-domains"}, h("legend", {}, "Domains that go back"),
    rows.map(({box, name, by, differs}) => h("div", {class: "field check"}, box,
      h("label", {for: box.id}, name), h("span", {class: "soft"}, by
        ? `the object ${by} of Kubernetes defines it` : differenceWords(differs)))),
    h("div", {"data-faults": "domains"}));
  rows.forEach(({box}) => box.addEventListener("change", tell));
  tell();
  const form = h("form", {novalidate: true}, problem, choices,
    field("reason", "Why", reason, "versions and the audit log show it"), losing,
    h("div", {class: "actions"}, main,
      h("span", {class: "soft"}, "This publishes their rules again, as a new version.")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const body = {version, domains: chosen(), discard_draft: lose.checked};
    rollBack(form, problem, losing, body, reason.value.trim());
  });
  return h("section", {}, h("h3", {}, "Roll back"), form);
}

// What a roll back of the domains that are chosen changes.
function rollbackBox(rows, found) {
  const place = h("div", {id: "back-changes"});
  const draw = () => {
    const is = (name) => rows.some((it) => it.name === name && it.box.checked);
    const domains = found.domains.filter((it) => is(it.domain));
    fill(place, domains.length ? differencesBox({...found, domains})
      : h("p", {class: "soft"}, "No domain is chosen."));
  };
  rows.forEach(({box}) => box.addEventListener("change", draw));
  draw();
  return [h("h3", {}, "What a roll back would change"), place];
}

async function rollBack(form, place, losing, body, reason) {
  const none = body.domains.length ? [] : [{field: "domains", message: "none is chosen"}];
  const faults = reason ? none : [...none, {field: "reason", message: "is missing; say why"}];
  if (showFaults(form, faults), faults.length) return;
  await busy(form, async () => {
    try {
      const answer = await call("POST", "/v1/rollback", {body, query: {reason}});
      published(`${namesOf(body.domains)}: version ${answer.body.version} has the rules of version `
        + `${body.version}.`, answer.body.version);
    } catch (problem) {
      showProblem(place, problem);
      losing.hidden &&= problem.kind !== "draft-changed";
    }
  });
}
