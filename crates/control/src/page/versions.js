// === Versions: what was published, and the way back ===

async function versionsView(main, {signal}) {
  const list = h("div", {"data-list": true});
  const tools = h("div", {class: "tools"}, h("h2", {tabindex: -1}, "Versions"));
  fill(main, h("section", {}, tools, list));
  const headings = [["version", "name"], ["published"], ["by"], ["why"], ["state"],
    ...(mayWrite() ? [["way back"]] : [])];
  const load = async (after) => (await get("/v1/versions",
    {limit: PAGE, ...(after && {before: after.version})}, signal)).versions;
  const versions = await load();
  if (!versions.length) return fill(list, h("p", {class: "soft"}, "Nothing is published yet."));
  const newest = versions[0].version;
  if (mayWrite()) tools.append(...[wayBack(versions)].filter((it) => it));
  const row = (it) => [h("a", {href: `#/versions/${it.version}`}, `Version ${it.version}`),
    time(it.at), author(it.author), it.reason, [it.version === newest && tag("in force", "good"),
      it.restores && tag(`brings back ${it.restores}`), it.rollout && tag(`rollout ${it.rollout}`)],
    ...(mayWrite() ? [it.version !== newest && h("a", {href: `#/versions/${it.version}`,
      "aria-label": `Roll back to version ${it.version}`}, "Roll back …")] : [])];
  fill(list, pagedTable(headings, row, versions, load));
}

// The way to the version before; before the rollout, if the last one is a step of it.
function wayBack([newest, ...earlier]) {
  const before = earlier.find((it) => !it.rollout || it.rollout !== newest.rollout);
  return before && h("a", {href: `#/versions/${before.version}`, class: "button", id: "way-back"},
    `Roll back to version ${before.version} …`);
}

async function versionView(main, {id, signal}) {
  const version = Number(id);
  const [{versions: [it]}, {versions: [newest]}] = await Promise.all([
    get("/v1/versions", {before: version + 1, limit: 1}, signal),
    get("/v1/versions", {limit: 1}, signal)]);
  if (it?.version !== version) throw new Problem(404, {detail: `there is no version ${id}`});
  const isNewest = version === newest.version;
  const changed = await differences({from: version - 1, to: version}, signal);
  fill(main, h("section", {}, h("div", {class: "bar"},
    h("h2", {tabindex: -1}, `Version ${version}`), isNewest && tag("in force", "good"),
    h("a", {href: "#/versions", id: "close"}, "Close")),
  facts([["published", time(it.at)], ["by", it.author], ["why", it.reason || "–"],
    ...(it.restores ? [["brings back", `version ${it.restores}`]] : [])])),
  // Before what it changed, which may be long.
  !isNewest && mayWrite() && await rollbackSection(version, signal),
  h("h3", {}, "What it changed"), differencesBox(changed));
}

async function rollbackSection(version, signal) {
  const found = await differences({to: version}, signal);
  const reason = textInput("", {maxlength: 1000});
  const lose = checkbox(false), problem = h("div");
  const losing = field("discard_draft", "Lose changes of the draft that are not published", lose);
  losing.hidden = true;
  const form = h("form", {novalidate: true}, problem,
    field("reason", "Why", reason, "versions and the audit log show it"), losing,
    h("div", {class: "actions"}, h("button", {type: "submit", class: "main", id: "roll-back"},
      `Roll back to version ${version}`),
    h("span", {class: "soft"}, "This publishes its rules again, as a new version.")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    rollBack(form, problem, losing, {version, discard_draft: lose.checked}, reason.value.trim());
  });
  return [found.domains.length > 0 && h("section", {}, h("h3", {}, "Roll back"), form),
    h("h3", {}, "What a roll back would change"), differencesBox(found)];
}

async function rollBack(form, place, losing, body, reason) {
  if (lacksReason(form, reason)) return;
  await busy(form, async () => {
    try {
      const answer = await call("POST", "/v1/rollback", {body, query: {reason}});
      published(`Version ${answer.body.version} has the rules of version ${body.version}.`,
        answer.body.version);
    } catch (problem) {
      showProblem(place, problem);
      losing.hidden = problem.status !== 409;
    }
  });
}
