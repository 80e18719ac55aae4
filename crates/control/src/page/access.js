// === Access: what one may do; for administrators tokens, people and approvals ===

const isAdmin = () => session.caller?.access === "admin";
const domainWords = (domains) => domains ? domains.join(", ") || "none" : "all domains";

async function accessView(main, {signal}) {
  const {name, access, domains, writable, is_session, kept_bytes: kept, kept_bytes_max: max}
    = await get("/v1/token", null, signal);
  const changes = access === "read" ? "nothing" : domainWords(writable);
  fill(main, h("section", {}, h("h2", {tabindex: -1}, "Access"),
    facts([["you", name], ["signed in", is_session ? "for 8 hours, by the provider" : "by a token"],
      ["access", access], ["you see", domainWords(domains)], ["you change", changes],
      ["kept of your writes", max === null ? `${count(kept)} bytes`
        : `${count(kept)} of ${count(max)} bytes`]])));
  if (!isAdmin()) return;
  const [tokens, approvals] = await Promise.all([get("/v1/tokens", {limit: PAGE}, signal),
    getAll("/v1/approvals", "domains", {signal})]);
  main.append(tokenForm(), tokensSection(tokens, signal), approvalsForm(approvals));
}

// Makes a token, and shows it until the part is left.
function tokenForm() {
  const name = textInput("", {maxlength: 128, required: true});
  const access = choice(["read", "write", "admin"], "read");
  const domains = textInput("", {placeholder: "shop, cart"});
  const days = textInput("90", {inputmode: "numeric"});
  const problem = h("div"), made = h("div", {id: "made"});
  const form = h("form", {novalidate: true}, problem, h("div", {class: "fields"},
    field("name", "Name", name, "history and audit log show it"),
    field("access", "May", access),
    field("domains", "Domains", domains, "separated by commas; empty: all"),
    field("days", "Days", days, "empty: until it is revoked")),
  h("div", {class: "actions"}, h("button", {type: "submit", class: "main", id: "make-token"},
    "Make a token")), made);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const named = domains.value.split(",").map((it) => it.trim()).filter((it) => it);
    makeToken(form, problem, made, () => ({name: name.value.trim(), access: access.value,
      ...(named.length && {domains: named}),
      ...(days.value && {days: typedNumber("days", days.value)})}));
  });
  return h("section", {}, h("h3", {}, "Make a token"), form);
}

async function makeToken(form, place, made, bodyOf) {
  showFaults(form, []);
  await busy(form, async () => {
    try {
      const {body: {id, token}} = await call("POST", "/v1/tokens", {body: bodyOf()});
      showProblem(place, null);
      const shown = h("input", {readonly: true, id: "made-token", "aria-label": "The token",
        spellcheck: "false"});
      shown.value = token || "";
      fill(made, h("div", {class: "attention", role: "status"},
        token ? h("p", {}, `The token ${id} is shown only now. Copy it before you leave.`)
          : h("p", {}, `The answer with the token ${id} was lost. Revoke it, and make another.`),
        token && shown));
      if (token) { shown.focus(); shown.select(); }
    } catch (problem) {
      showProblem(place, problem);
      showFaults(form, problem.errors || []);
    }
  });
}

function tokensSection(first, signal) {
  const problem = h("div");
  const headings = [["who", "name"], ["may"], ["domains"], ["made"], ["state"], ["end"]];
  const load = (next) => get("/v1/tokens", {limit: PAGE, before: next}, signal);
  const row = (it) => [h("span", {title: it.person || it.id}, it.name), it.access,
    rightsWords(it), [time(it.created_at), it.made_by && h("span", {class: "soft",
      title: it.made_by}, " by the API")], stateOf(it),
    !it.revoked_at && button("Revoke", () => revokeToken(problem, it), "danger quiet",
      {"aria-label": `Revoke ${it.person || it.id} ${it.name}`})];
  return h("section", {id: "tokens"}, h("h3", {}, "Tokens and people"), problem,
    pagedTable(headings, row, "tokens", first, load));
}

// The domains that one may use, and which of them it may change if that differs.
function rightsWords({access, domains, writable}) {
  const isLess = access !== "read" && writable !== undefined
    && JSON.stringify(writable) !== JSON.stringify(domains);
  return domainWords(domains) + (isLess ? `; changes ${domainWords(writable)}` : "");
}

function stateOf(it) {
  return [it.person && tag("person"), it.is_valid ? tag("valid", "good")
    : tag(it.revoked_at ? "revoked" : "expired", "bad"),
  it.expires_at && !it.revoked_at && ["until ", time(it.expires_at)]];
}

async function revokeToken(place, {id, name, person}) {
  const what = person ? `${name}, who then cannot sign in again` : `the token ${name} (${id})`;
  const made = "Tokens that it had the API make end too, and their approvals count no more.";
  if (!confirm(`Revoke ${what}? ${made}`)) return;
  try {
    await call("DELETE", `/v1/tokens/${encodeURIComponent(id)}`, {query: {reason: "by the page"}});
    await show();
    showNotice(`${name} is revoked.`);
  } catch (problem) {
    showProblem(place, problem);
  }
}

// Which domains ask for approvals, and how many.
function approvalsForm(asking) {
  const domain = textInput("", {required: true}), approvals = choice(["0", "1", "2"], "1");
  const problem = h("div");
  const form = h("form", {novalidate: true}, problem, h("div", {class: "fields"},
    field("domain", "Domain", domain), field("approvals", "Approvals", approvals,
      "of others than the authors of a draft")),
  h("div", {class: "actions"}, h("button", {type: "submit", id: "set-approvals"}, "Set")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    busy(form, async () => {
      try {
        const body = {domain: domain.value.trim(), approvals: Number(approvals.value)};
        await call("PUT", "/v1/approvals", {body});
        await show();
        showNotice(`${body.domain} asks for ${plural(body.approvals, "approval")}.`);
      } catch (fault) {
        showProblem(problem, fault);
        showFaults(form, fault.errors || []);
      }
    });
  });
  return h("section", {id: "approvals"}, h("h3", {}, "Approvals"),
    h("p", {}, asking.length ? "These domains ask for approvals: "
      : "No domain asks for approvals.", asking.map((it, at) =>
      `${at ? ", " : ""}${it.domain} (${it.approvals})`)), form);
}
