// === The changes of the draft: look, dry run, publish ===

// A reason that was typed, so that it is still there when the draft is looked at again.
let reason_typed = "";

async function changesView(main, {signal}) {
  fill(main, h("div", {class: "bar"}, h("h2", {tabindex: -1}, "Changes that are not published")));
  const asked = await approvalsOf(signal);
  const [{domains}, found] = await Promise.all([get("/v1/domains", null, signal),
    differences({}, signal)]);
  const changed = domains.filter((it) => it.is_changed).map((it) => it.domain);
  refreshChanged(domains);
  if (!changed.length) {
    return main.append(h("section", {}, h("p", {},
      "Nothing to publish: the draft is what is published.")));
  }
  main.append(...[differencesBox(found)].flat(9).filter((it) => it));
  if (asked.length) main.append(approvalsSection(asked));
  if (!mayWrite()) return;
  const place = h("div");
  main.append(place);
  await checkDraft(main, place, changed, signal);
}

// Compiles the draft; then it can be published, or its faults are listed.
async function checkDraft(main, place, changed, signal) {
  try {
    const [{body: checked}, rollout] = await Promise.all([
      call("POST", "/v1/check", {body: {domains: changed}, signal}), lastRollout(signal)]);
    place.replaceWith(warningsBox(checked.warnings), dryRunSection(),
      isOpen(rollout) ? underWay(rollout) : beginSection(changed, checked),
      publishSection(changed, checked));
  } catch (problem) {
    showProblem(place, problem, () => show());
  }
}

function warningsBox(warnings) {
  if (!warnings.length) return "";
  return h("div", {class: "attention"}, h("h3", {}, plural(warnings.length, "warning")),
    h("ul", {}, warnings.slice(0, 50).map(faultItem)));
}

function publishSection(changed, {etag, rules}) {
  const reason = textInput(reason_typed, {id: "reason", maxlength: 1000, required: true});
  reason.addEventListener("input", () => { reason_typed = reason.value; });
  const words = plural(changed.length, "domain");
  const problem = h("div");
  const form = h("form", {novalidate: true}, problem,
    h("p", {class: "good"}, `● The compiler accepts it: ${plural(rules, "rule")} of ${words}.`),
    field("reason", "Why", reason, "versions and the audit log show it"),
    h("div", {class: "actions"}, h("button", {type: "submit", class: "main", id: "publish"},
      `Publish ${words}`), h("span", {class: "soft"}, changed.join(", "))));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    publish(form, problem, changed, etag);
  });
  return h("section", {id: "publishing"}, h("h3", {}, "Publish"), form);
}

async function publish(form, place, changed, etag, skips_approvals) {
  const reason = reason_typed.trim();
  if (lacksReason(form, reason)) return;
  await busy(form, async () => {
    try {
      const {body} = await call("POST", "/v1/publish", {body: {domains: changed}, query: {reason,
        ...(skips_approvals && {skip_approvals: true})}, headers: {"if-match": etag}});
      reason_typed = "";
      published(`Version ${body.version} is published.`, body.version);
    } catch (problem) {
      const isMoved = [409, 412].includes(problem.status);
      const again = () => isMoved ? show() : publish(form, place, changed, etag);
      const skips = problem.body?.needed && isAdmin() && button("Publish without approvals",
        () => publish(form, place, changed, etag, true), "danger");
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
