// === Approvals of a draft ===

// What the drafts of these domains lack, as it was before their differences were read: an approval is
// of exactly the draft that its reader saw.
async function approvalsOf(signal) {
  const domains = await getAll("/v1/approvals", "domains", {signal});
  return domains.filter((it) => it.is_changed);
}

function approvalsSection(asked) {
  if (!asked.length) return "";
  const place = h("div");
  const mine = (it) => it.authors.includes(session.caller.name);
  const names = (all) => all.map((it, at) => [at > 0 && ", ", author(it)]);
  const row = (it) => [it.domain, it.is_approved ? tag("approved", "good")
    : tag(`${it.approved_by.length} of ${it.approvals}`, "warn"), names(it.authors),
  names(it.approved_by.map((by) => by.author)),
  mine(it) ? "another person has to" : it.is_approved || !mayWrite() ? ""
    : button("Approve", () => approve(place, it), "", {"data-approve": it.domain,
      "aria-label": `Approve the draft of ${it.domain}`})];
  const headings = [["domain", "name"], ["approvals"], ["changed by"], ["approved by"], ["you"]];
  return h("section", {id: "approving"}, h("h3", {}, "Approvals"), place,
    table("Drafts that others than their authors approve", headings, asked.map(row)));
}

async function approve(place, {domain, etag}) {
  try {
    await call("POST", "/v1/approvals", {body: {domain}, headers: {"if-match": etag}});
    await show();
    showNotice(`You approved the draft of ${domain}.`);
  } catch (problem) {
    showProblem(place, problem, () => show());
  }
}
