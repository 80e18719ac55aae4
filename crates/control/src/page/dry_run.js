// === Dry run: a log under the draft and under what is published ===

const LOG_BYTES_MAX = 24 << 20;

function dryRunSection() {
  const log = h("textarea", {spellcheck: "false", rows: 6, placeholder:
    '{"time": "2026-11-23T19:00:00Z", "domain": "shop", "descriptors": [{"entries": …}]}'});
  const file = h("input", {type: "file", accept: ".log,.json,.jsonl,.txt,text/*"});
  const domain = textInput(""), mapping = textInput("", {placeholder: "path=%path_without_query%"});
  const result = h("div", {id: "dry-run-result", role: "status"});
  const form = h("form", {novalidate: true},
    h("p", {class: "soft"}, "Paste or drop a sample of recent requests: decision samples of a pod "
      + "(DECISION_SAMPLE_RATE, LOG_FORMAT=json, LOG_VALUES=true), requests in JSON, or an access "
      + "log of Envoy. Counts begin empty, and only what the sample has is counted."),
    h("div", {class: "fields"},
      h("div", {class: "wide"}, field("log", "Sample", log)), field("file", "or a file", file),
      field("domain", "Domain", domain, "of lines that name none"),
      field("descriptors", "Descriptor", mapping, "of access logs; spaces separate several")),
    h("div", {class: "actions"}, h("button", {type: "submit", id: "dry-run"}, "Dry run")),
    result);
  const read = async () => file.files[0]
    ? textOf(file.files[0], "Use a part of it, or ratectl replay.") : log.value;
  const input = async () => ({log: await read(),
    descriptors: mapping.value.split(/\s+/).filter((it) => it),
    ...(domain.value.trim() && {domain: domain.value.trim()})});
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dryRun(form, result, input);
  });
  acceptDrops(form, (dropped) => { file.files = dropped; dryRun(form, result, input); });
  return h("section", {id: "trying"}, h("h3", {}, "Dry run"), form);
}

async function textOf(file, advice) {
  if (file.size <= LOG_BYTES_MAX) return file.text();
  throw new Problem(413, {detail: `the file has ${tenth.format(file.size / (1 << 20))} MiB; at `
    + `most ${LOG_BYTES_MAX >> 20} MiB are taken. ${advice}`});
}

function acceptDrops(form, take) {
  const isOver = (event, is) => { event.preventDefault(); form.classList.toggle("drop", is); };
  form.addEventListener("dragover", (event) => isOver(event, true));
  form.addEventListener("dragleave", (event) => isOver(event, false));
  form.addEventListener("drop", (event) => {
    isOver(event, false);
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
  });
}

async function dryRun(form, result, input) {
  await busy(form, async () => {
    fill(result, h("p", {class: "soft"}, "running"));
    showFaults(form, []);
    try {
      const body = await input();
      fill(result, replayBox((await call("POST", "/v1/replay", {body})).body));
    } catch (problem) {
      const rest = showFaults(form, problem.errors || []);
      showProblem(result, Object.assign(problem, {errors: rest}));
    }
  });
}

function replayBox(report) {
  const {requests, published: was, draft, newly_denied: denied, newly_passed: passed} = report;
  const tile = (term, value, name) =>
    h("div", {}, h("dt", {}, term), h("dd", {class: name}, value));
  return [h("dl", {class: "tiles"}, tile("requests", count(requests)),
    tile("decided otherwise", count(denied + passed), denied + passed ? "warn" : "good"),
    tile("newly denied", count(denied), denied ? "bad" : ""),
    tile("newly passed", count(passed), passed ? "good" : ""),
    tile("denied now", share(was.denied, requests)),
    tile("denied by the draft", share(draft.denied, requests))),
    doubts(report), report.rules.length > 0 && rulesReplayed(report.rules), examples(report)];
}

function doubts(report) {
  const {unreadable, other_domains, without_descriptor, out_of_order} = report;
  const [first] = report.first_unreadable;
  const lines = [
    report.from && `from ${report.from} to ${report.to}`,
    unreadable && `${plural(unreadable, "line")} could not be read; line ${first?.line}: `
      + first?.why,
    other_domains && `${plural(other_domains, "request")} of domains without rules`,
    without_descriptor && `${plural(without_descriptor, "line")} that lack a field`,
    out_of_order && `${plural(out_of_order, "line")} out of order`,
  ];
  return h("p", {class: "soft"}, lines.filter((it) => it).join("; "));
}

function rulesReplayed(rules) {
  const cells = (it) => it ? [count(it.passed), count(it.denied)] : ["–", "–"];
  return table("Rules with other results", [["rule", "name"], ["passes now", "n"],
    ["denied now", "n"], ["draft passes", "n"], ["draft denies", "n"]],
  rules.map((it) => [it.rule, ...cells(it.published), ...cells(it.draft)]));
}

function examples({examples: all}) {
  return all.length > 0 && table("Requests that are decided otherwise, the first ones",
    [["request", "name"], ["draft"], ["requests", "n"], ["first line", "n"]],
    all.map((it) => [`${it.domain}: ${it.descriptors.join("; ")}`,
      it.is_denied ? "denies" : "passes", count(it.requests), count(it.line)]));
}
