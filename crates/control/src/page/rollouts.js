// === Rollouts: a draft that some pods run before the others ===

const ROLLOUT_MS = 1000;

// What each stage means for a limit, and how it looks.
const STAGES = {
  shadow: ["warn", "The limits in force stay, on all pods. Chosen pods also count what the draft "
    + "would deny, from empty counts; it denies nobody."],
  enforced: ["warn", "Chosen pods enforce the draft, the others what is published."],
  all: ["good", "All pods enforce the draft: it is published."],
  aborted: ["", "It was aborted: all pods enforce what is published."],
  rolled_back: ["bad", "Chosen pods denied more than the bound allows, so that all pods enforce "
    + "what is published."],
};
const isOpen = (rollout) => ["shadow", "enforced"].includes(rollout?.stage);
const stageTag = (stage) => tag(stage.replace("_", " "), STAGES[stage]?.[0]);
const lastRollout = async (signal) =>
  (await get("/v1/rollouts", {limit: 1}, signal)).rollouts[0];

const choiceWords = ({percent, label}) =>
  label ? `pods with ${label.key}=${label.value}` : `${percent} % of the pods`;
const domainsOf = ({domains}) => domains.map((it) => it.domain).join(", ");

async function rolloutsView(main, {signal}) {
  const load = (next) =>
    get("/v1/rollouts", {limit: PAGE, ...(next && {before: next})}, signal);
  const first = await load();
  const headings = [["rollout", "name"], ["stage"], ["pods"], ["domains"], ["begun"], ["by"],
    ["why"]];
  const row = (it) => [h("a", {href: `#/rollouts/${it.rollout}`}, `Rollout ${it.rollout}`),
    stageTag(it.stage), choiceWords(it.choice), domainsOf(it), time(it.steps[0].at),
    author(it.steps[0].author), it.steps[0].reason];
  fill(main, h("section", {}, h("div", {class: "tools"}, h("h2", {tabindex: -1}, "Rollouts")),
    h("p", {class: "soft"}, "Some pods run a draft before the others. A rollout begins in ",
      h("a", {href: "#/changes"}, "Changes"), "."),
    first.rollouts.length
      ? h("div", {"data-list": true}, pagedTable(headings, row, "rollouts", first, load))
      : h("p", {class: "soft"}, "There was none yet.")));
}

// One rollout, followed while it is under way. Only the figures are drawn again, so that what is
// typed stays.
async function rolloutView(main, {id, signal}) {
  const figures = h("section", {id: "figures"});
  let at = "", stage = "", last = "";
  do {
    const found = await get(`/v1/rollouts/${encodeURIComponent(id)}`, null, signal);
    if (JSON.stringify(found) !== last) fill(figures, figuresOf(found));
    last = JSON.stringify(found);
    if (`${found.stage} ${found.step}` !== at) {
      stage = found.stage;
      at = `${stage} ${found.step}`;
      fill(main, rolloutHead(found), isOpen(found) && mayWrite() && stepSection(found), figures,
        stepsSection(found));
      arrive(main);
    }
    if (isOpen(found)) await sleep(ROLLOUT_MS, signal);
  } while (!signal.aborted && isOpen({stage}));
}

function rolloutHead(rollout) {
  const {stage, choice, bound, step, plan, shares = []} = rollout;
  const chosen = shares.map((it) => `${it.chosen} of ${plural(it.serve, "pod")} of ${it.domain}`);
  return h("section", {}, h("div", {class: "bar"},
    h("h2", {tabindex: -1}, `Rollout ${rollout.rollout}`), stageTag(stage),
    h("a", {href: "#/rollouts", id: "close"}, "Close")),
  h("p", {id: "stage-words"}, STAGES[stage]?.[1]),
  facts([["chosen", [choiceWords(choice), ...chosen].join("; ")], ["domains", domainsOf(rollout)],
    ["step", `${step} of ${plan.length}: ${plan.map(planWords).join(" → ")} → all`],
    ...(rollout.ends_at ? [["ends", ["without another step ", time(rollout.ends_at)]]] : []),
    ["rolled back", bound ? "once they enforce it and deny more than "
      + `${share(bound.denied_share, 1)} of at least ${plural(bound.hits_min, "hit")} within 30 s`
      : "by hand only"]]));
}

const planWords = ({stage, percent, wait}) =>
  `${stage}${percent ? ` ${percent} %` : ""}${wait ? ` for ${wait}` : ""}`;

// Both groups of pods side by side.
function figuresOf({stage, domains, pods, warnings, waits_for}) {
  const part = (n, {hits}) => hits ? `${count(n)} (${share(n, hits)})` : "–";
  const row = ({domain}, name, it) => [[h("span", {class: "soft"}, `${domain} › `), name],
    count(it.hits), part(it.denied, it), part(it.shadow_denied, it)];
  const group = (name, it) =>
    [name, ...[it.connected, it.current, it.refused, it.without_reports].map(count)];
  return [waits_for && h("p", {id: "waits-for"}, `The next step waits for ${waits_for}.`),
    warnings.length > 0 && h("div", {class: "attention", id: "warnings"},
    h("ul", {}, warnings.map((it) => h("li", {}, it)))),
  table("Hits since the stage began", [["pods of a domain", "name"], ["hits", "n"],
    ["denied", "n"], [stage === "shadow" ? "the draft would deny" : "would be denied", "n"]],
  domains.flatMap((it) => [row(it, "chosen", it.chosen), row(it, "others", it.others)])),
  pods && table("Pods that are connected", [["pods", "name"], ["connected", "n"],
    ["run the step", "n"], ["refused it", "n"], ["report no hits", "n"]],
  [group("chosen", pods.chosen), group("others", pods.others)])];
}

function stepsSection({steps}) {
  return h("section", {}, h("h3", {}, "Steps"), steps.map((it) => h("div", {class: "change"},
    time(it.at), " ", author(it.author), " ", stageTag(it.stage), it.percent && ` ${it.percent} %`, " ",
    h("a", {href: `#/versions/${it.version}`}, `version ${it.version}`),
    it.reason && `: ${it.reason}`)));
}

// The ways on from a stage: the next one, which needs a reason, so that no second click takes the
// step after it; or back, at once.
function stepSection(rollout) {
  const next = rollout.plan[rollout.step];
  const words = !next ? "Publish to all pods" : next.stage === rollout.stage
    ? `Go on to ${next.percent} % of the pods` : "Have the chosen pods enforce it";
  const reason = textInput("", {maxlength: 1000}), force = checkbox(false), problem = h("div");
  const forcing = field("force", "Go on all the same", force);
  forcing.hidden = true;
  const step = async (path, body) => busy(form, async () => {
    try {
      const query = {reason: reason.value.trim()}, of = `/v1/rollouts/${rollout.rollout}`;
      const taken = (await call("POST", `${of}/${path}`, {body, query})).body;
      showNotice(`Rollout ${taken.rollout} is at the stage ${taken.stage}.`);
      refreshChanged();
      show();
    } catch (fault) {
      showProblem(problem, fault);
      forcing.hidden = !/:(bound-exceeded|inconclusive)$/.test(fault.body?.type ?? "");
    }
  });
  const form = h("form", {novalidate: true}, problem,
    field("reason", "Why", reason, "versions and the audit log show it"), forcing,
    h("div", {class: "actions"}, h("button", {type: "submit", class: "main", id: "advance"}, words),
      button("Abort", () => step("abort"), "danger", {id: "abort"}),
      h("span", {class: "soft"}, "An abort takes the draft from the chosen pods.")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (lacksReason(form, reason.value.trim())) return;
    step("advance", {step: rollout.step + 1, force: force.checked});
  });
  return h("section", {}, h("h3", {}, "Next step"), form);
}

// The form in Changes that begins one.
function beginSection(selection) {
  const inputs = {of: choice([["percent", "a percentage"], ["label", "those with a label"]]),
    percent: textInput("10", {inputmode: "numeric"}), key: textInput(""), value: textInput(""),
    stage: choice([["shadow", "only count"], ["enforced", "enforce it"]]),
    share: textInput("", {inputmode: "decimal"}), hits: textInput("100", {inputmode: "numeric"}),
    reason: textInput("", {maxlength: 1000})};
  const label = [field("pods.label.key", "Key of the label", inputs.key),
    field("pods.label.value", "Its value", inputs.value, "of the node's metadata")];
  const percent = field("pods.percent", "Percent", inputs.percent, "of the pods, from 1 to 100");
  const meaning = h("p", {class: "soft", id: "stage-meaning"}), problem = h("div");
  const showChoice = () => {
    percent.hidden = inputs.of.value !== "percent";
    label.forEach((it) => { it.hidden = inputs.of.value !== "label"; });
    meaning.textContent = STAGES[inputs.stage.value][1];
  };
  const form = h("form", {novalidate: true}, problem,
    h("div", {class: "fields"}, field("pods", "Pods", inputs.of), percent, label,
      field("stage", "At first they", inputs.stage),
      field("bound.denied_share", "Roll back above", inputs.share,
        "0.05: once they deny more than 5 % within 30 s; empty: never"),
      field("bound.hits_min", "of at least so many hits", inputs.hits),
      h("div", {class: "wide"}, field("reason", "Why", inputs.reason))), meaning,
    h("div", {class: "actions"}, h("button", {type: "submit", id: "begin"}, "Begin a rollout")));
  [inputs.of, inputs.stage].forEach((it) => it.addEventListener("change", showChoice));
  showChoice();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await selection.checking;
    if (!selection.etag) {
      return fill(problem, h("p", {class: "fault"}, "No domain is chosen that can be published."));
    }
    beginRollout(form, problem, {domains: selection.domains, ...rolloutTyped(inputs)},
      inputs.reason.value.trim(), selection.etag);
  });
  return h("section", {id: "rolling-out"}, h("h3", {}, "Try it on some pods first"), form);
}

// What the form says, as the API takes it.
function rolloutTyped({of, percent, key, value, stage, share: typed_share, hits}) {
  const bound = typed_share.value.trim();
  const number = (text) => text.trim() && Number.isFinite(Number(text)) ? Number(text) : text;
  return {stage: stage.value, pods: of.value === "percent" ? {percent: number(percent.value)}
    : {label: {key: key.value, value: value.value}},
  ...(bound && {bound: {denied_share: number(bound), hits_min: number(hits.value)}})};
}

async function beginRollout(form, place, body, reason, etag) {
  showProblem(place);
  if (lacksReason(form, reason)) return;
  await busy(form, async () => {
    try {
      const begun = await call("POST", "/v1/rollouts", {body, query: {reason},
        headers: {"if-match": etag}});
      location.hash = `#/rollouts/${begun.body.rollout}`;
      showNotice(`Rollout ${begun.body.rollout} has begun.`);
    } catch (problem) {
      problem.errors = showFaults(form, problem.errors || []);
      showProblem(place, problem, problem.status === 412 ? () => show() : null);
    }
  });
}

// In Changes while one is under way.
const underWay = (rollout) => h("div", {class: "attention", id: "under-way"},
  h("p", {}, h("a", {href: `#/rollouts/${rollout.rollout}`}, `Rollout ${rollout.rollout}`),
    ` is under way. Until it ends, none of its domains can be published: ${domainsOf(rollout)}.`));
