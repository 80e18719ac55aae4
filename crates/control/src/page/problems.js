// === Problems ===

// What to do about a status.
const ADVICE = {
  0: ["No answer", "The connection was lost, and the write may or may not have been done. Look at "
    + "its result before you repeat it."],
  400: ["The request was not understood", "This page may be of another release: load it again."],
  403: ["You may not do this", "Ask an administrator for a role or a token with this access and "
    + "domain, then sign out and in again. Access shows what you may do."],
  404: ["There is no such thing", "It may have been removed meanwhile; go back to the list."],
  409: ["This contradicts the present state", "Nothing was written. Look at what is there now, "
    + "then decide."],
  412: ["It changed meanwhile", "Nothing was written, and what you typed is still here. Look at "
    + "what changed, then decide."],
  413: ["Too large", "Send less at once."],
  422: ["The compiler refuses this", "Nothing was written. Mend what is marked, then save again."],
  429: ["Too many requests", "Wait a moment, then try again."],
  500: ["Internal error", "The log of the control plane has more."],
  503: ["The database is not available", "Pods keep their rules. What you typed is still here; "
    + "try again when the database is back."],
};

// What refusals tell clients of the API to send, and what to do on this page instead.
const ON_PAGE = [
  [/ Advance it to all with \/v1\S+, or end it with \/v1\S+/, " Open it to advance or abort it."],
  [/send discard_draft: true/, "tick “Lose changes of the draft”"],
  [/send force: true/, "tick “Go on all the same”"],
  [/; look at 'conflicts', and put .* take it out/, "; try again to see them"],
  [/ with \/v1\/publish/, " in Changes"],
  [/; leave out 'publish', and publish the draft/, ""],
];
const onPage = (words) => ON_PAGE.reduce((text, [from, to]) => text.replace(from, to), words);

// Where to go about a refusal.
function problemLink({kind, body}) {
  const to = (href, words) => h("p", {}, h("a", {href}, words));
  if (body.rollout) return to(`#/rollouts/${body.rollout}`, `Open rollout ${body.rollout}`);
  if (kind === "draft-changed") return to("#/changes", "Look at the changes");
  return null;
}

// A box that says what went wrong and what to do. `again` is offered as a button.
function problemBox(problem, again, ...more) {
  if (!(problem instanceof Problem)) {
    console.error(problem);
    problem = new Problem(500, {detail: `this page failed: ${problem.message}`});
  }
  const [title, advice] = ADVICE[problem.status] || [`Status ${problem.status}`, ""];
  const count = problem.body.error_count;
  return h("div", {class: "attention problem", role: "alert", tabindex: -1,
    "data-status": problem.status}, h("h3", {}, `▲ ${title}`), h("p", {}, onPage(problem.message)), problemLink(problem),
    problem.errors.length > 0 && h("ul", {}, problem.errors.map(faultItem),
      count && h("li", {}, `and ${plural(count - problem.errors.length, "more fault")}`)),
    h("p", {class: "soft"}, advice), more,
    again && h("div", {class: "actions"}, button("Try again", again)));
}

// A fault as an item of a list, with a link to its rule.
function faultItem({domain, rule, field, message}) {
  const where = [domain, field].filter((it) => it).join(": ");
  return h("li", {}, h("strong", {}, rule ? h("a", {href: `#/rules/${rule}`}, where) : where),
    `: ${message}`);
}

// Shows a problem in a place of its own, or clears it.
function showProblem(place, problem, again, ...more) {
  if (!problem) return fill(place);
  if (problem.name === "AbortError") return;
  fill(place, problemBox(problem, again, ...more));
  place.firstElementChild.scrollIntoView({block: "nearest"});
}
