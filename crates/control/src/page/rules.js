// === The list of rules ===

const PAGE = 100, TYPING_MS = 200;
const RULE_COLUMNS = [["rule", "name"], ["limit", "whole"], ["more"], ["changed"], ["by"]];

// What was typed into editors and is not saved, by the id of the rule; "new" for a new one.
const unsaved = new Map();

async function rulesView(main, {query, signal}) {
  const list = h("div", {id: "list", "data-list": true});
  const listed = h("span", {class: "soft", id: "listed", role: "status"});
  const search = h("input", {type: "search", id: "search", autocomplete: "off",
    spellcheck: "false", placeholder: "key, value or setting"});
  const domain = h("select", {id: "domain-filter"}, h("option", {value: ""}, "all domains"));
  search.value = query.get("q") || "";
  fill(main, h("section", {}, h("div", {class: "tools"},
    h("h2", {tabindex: -1}, "Rules"), h("label", {for: "search"}, "Search"), search,
    h("label", {for: "domain-filter"}, "Domain"), domain, listed,
    mayWrite() && h("a", {href: "#/rules/new", id: "add", class: "button"}, "Add a rule")), list));
  const domains = await allDomains(signal);
  domain.append(...domains.map((it) => h("option", {value: it.domain},
    `${it.domain} (${count(it.rules)})`)));
  domain.value = query.get("domain") || "";
  let round = new AbortController();
  const load = async () => {
    round.abort();
    round = new AbortController();
    const wanted = {q: search.value, domain: domain.value};
    await listRules(list, listed, wanted, AbortSignal.any([signal, round.signal]));
  };
  // Only input in these fields changes the address, unless a link has changed it already: the page
  // learns of that later.
  const place = () => location.hash.split("?")[0];
  let own = place();
  const change = () => {
    if (place() !== own) return;
    history.replaceState(null, "", `#/rules${queryOf({q: search.value, domain: domain.value})}`);
    own = place();
    load();
  };
  let timer = 0;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(change, TYPING_MS);
  });
  domain.addEventListener("change", change);
  signal.addEventListener("abort", () => { clearTimeout(timer); round.abort(); });
  await load();
}

// Only what is set.
function queryOf(wanted) {
  const set = Object.entries(wanted).filter(([, value]) => value);
  return set.length ? `?${new URLSearchParams(set)}` : "";
}

// Shows the first page of what is wanted, and has a button add further ones.
async function listRules(list, listed, wanted, signal) {
  const filter = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value));
  // A page of a search may have no rules although further ones do.
  const load = async (cursor) => {
    for (;;) {
      const query = {...filter, limit: PAGE, ...(cursor && {cursor})};
      const page = await get("/v1/rules", query, signal);
      if (page.rules.length || !page.next) return page;
      cursor = page.next;
    }
  };
  try {
    let {rules, next} = await load();
    const shown = table("The draft, by domain and in the order of its rules", RULE_COLUMNS,
      rules.map(ruleRow));
    const more = button("Show more", async () => {
      const from = shown.querySelectorAll("tbody tr").length;
      ({rules, next} = await load(next));
      const added = table("", RULE_COLUMNS, rules.map(ruleRow));
      shown.querySelector("tbody").append(...added.querySelectorAll("tbody tr"));
      shown.querySelectorAll("tbody tr a")[from]?.focus();
      tell();
    }, "", {id: "more"});
    const tell = () => {
      const all = shown.querySelectorAll("tbody tr").length;
      listed.textContent = next ? `the first ${count(all)}` : plural(all, "rule");
      more.hidden = !next;
    };
    const focused = list.contains(document.activeElement) && document.activeElement.hash;
    fill(list, rules.length ? shown : h("p", {class: "soft"}, emptyWords(filter)), more);
    if (focused) focusLink(shown, focused);
    tell();
  } catch (problem) {
    showProblem(list, problem, () => listRules(list, listed, wanted, signal));
  }
}

// Puts the focus back that a new list has taken away.
function focusLink(shown, hash) {
  const links = [...shown.querySelectorAll("tbody a")];
  (links.find((it) => it.hash === hash) || links[0])?.focus();
}

function emptyWords(filter) {
  if (Object.keys(filter).length) return "No rule matches this search.";
  return mayWrite() ? "There are no rules yet: add one, or import rule files (Files, above)."
    : "There are no rules yet.";
}

function ruleRow(rule) {
  const name = [h("span", {class: "soft"}, `${rule.domain} › `),
    h("a", {href: `#/rules/${rule.id}`}, entriesWords(rule.entries))];
  const tags = [rule.shadow_mode && tag("shadow", "warn"), rule.quota_mode && tag("quota"),
    unsaved.has(rule.id) && tag("not saved", "warn")];
  return [h("th", {scope: "row", class: "name"}, name, tags), limitWords(rule),
    h("span", {class: "soft"}, moreWords(rule)), time(rule.updated_at), author(rule.updated_by)];
}
