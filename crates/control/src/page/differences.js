// === What differs ===

const DIFFERENCES_MAX = 200;

// The settings that differ, line by line; signs and words say the same as the colours.
function settingChanges(before, after) {
  const [was, now] = [flat(before), flat(after)];
  const names = [...new Set([...Object.keys(was), ...Object.keys(now)])].sort();
  const line = (sign, look, name, value) =>
    h("li", {class: `${look} name`}, `${sign} ${name}: ${value}`);
  return h("ul", {}, names.filter((name) => was[name] !== now[name]).map((name) => [
    name in was && line("−", "removed", name, was[name]),
    name in now && line("+", "added", name, now[name])]));
}

// One rule that differs.
function ruleChange({id, entries, before, after}) {
  const [words, look] = before ? after ? ["changed", "warn"] : ["removed", "removed"]
    : ["added", "added"];
  const name = entriesWords(entries);
  return h("div", {class: "change", "data-change": words}, h("span", {class: look}, `${words} `),
    h("span", {class: "name"}, after ? h("a", {href: `#/rules/${id}`}, name) : name),
    settingChanges(before, after));
}

// All that differs, domain by domain.
function differencesBox({domains, is_truncated}) {
  if (!domains.length) return h("p", {class: "soft"}, "Nothing differs.");
  const box = domains.map((it) => h("section", {"data-domain": it.domain},
    h("h3", {}, it.domain, h("span", {class: "soft"}, ` ${differenceWords(it)}`)),
    it.rules.map(ruleChange)));
  const rest = is_truncated && h("p", {class: "soft"},
    "Only some of the rules are listed.");
  return [box, rest];
}

function differenceWords({added, changed, removed, defaults_or_order}) {
  const parts = [[added, "added"], [changed, "changed"], [removed, "removed"]];
  const words = parts.filter(([n]) => n).map(([n, what]) => `${count(n)} ${what}`);
  if (defaults_or_order) words.push("defaults or order");
  return words.join(", ");
}

// What differs, in all domains. Of those after the first page only the numbers are shown.
async function differences(query, signal) {
  const found = await get("/v1/differences", {limit: DIFFERENCES_MAX, ...query}, signal);
  for (let {next} = found; next != null;) {
    const page = await get("/v1/differences", {limit: 1, ...query, after: next}, signal);
    found.domains.push(...page.domains);
    found.is_truncated ||= page.is_truncated;
    next = page.next;
  }
  return found;
}
