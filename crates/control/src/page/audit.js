// === The audit log ===

async function auditView(main, {query, signal}) {
  const fields = [["domain", "Domain", "text"], ["author", "Author", "text"],
    ["since", "From", "datetime-local"], ["until", "Until", "datetime-local"]];
  const inputs = fields.map(([name, label, type]) => {
    const input = textInput(query.get(name), {type});
    return [name, input, field(name, label, input, type === "text" ? "" : "in your time zone")];
  });
  const form = h("form", {novalidate: true, role: "search"},
    h("div", {class: "fields"}, inputs.map((it) => it[2])),
    h("div", {class: "actions"}, h("button", {type: "submit", class: "main"}, "Show"),
      h("a", {href: "#/audit"}, "All")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = inputs.map(([name, {value}]) => [name, value.trim()]).filter((it) => it[1]);
    location.hash = asked.length ? `#/audit?${new URLSearchParams(asked)}` : "#/audit";
  });
  const list = h("div");
  fill(main, h("section", {}, h("h2", {tabindex: -1}, "Audit log"), form), h("section", {}, list));
  const filter = auditFilter(query);
  const load = (next) =>
    get("/v1/audit", {...filter, limit: PAGE, ...(next && {before: next})}, signal);
  try {
    const first = await load();
    const row = (it) => [it.action, time(it.at), author(it.author), it.subject, it.reason];
    const headings = [["action", "name"], ["when"], ["by"], ["what"], ["why"]];
    if (first.actions.length) fill(list, pagedTable(headings, row, "actions", first, load));
    else fill(list, h("p", {class: "soft"}, "Nothing was done that this looks for."));
  } catch (problem) {
    showProblem(list, problem, () => show());
    showFaults(form, problem.errors || []);
  }
}

// What the address asks for, with times as the API takes them.
function auditFilter(query) {
  const filter = {};
  for (const [name, value] of query) {
    const at = ["since", "until"].includes(name) ? new Date(value) : null;
    filter[name] = at && !Number.isNaN(at.getTime()) ? at.toISOString() : value;
  }
  return filter;
}
