// === Pods: who runs which version, and what they deny ===

const PODS_MS = 1000, PODS_LISTED = 200;

async function podsView(main, {signal}) {
  const summary = h("p", {id: "pods-summary", role: "status"}), list = h("div", {id: "pods"});
  fill(main, h("section", {}, h("div", {class: "tools"}, h("h2", {tabindex: -1}, "Pods")),
    summary, list));
  arrive(main);
  let last = "";
  while (!signal.aborted) {
    const found = await allPods(signal), rollout = await lastRollout(signal);
    const denied = await get("/v1/fleet", null, signal).catch(ofOlderReplica);
    // Drawn only if something changed, so that a selection stays.
    const text = JSON.stringify([found, rollout, denied]);
    if (text !== last) showPods(summary, list, found, rollout, denied);
    last = text;
    // A large fleet is read less often.
    await sleep(PODS_MS * Math.max(1, found.pods.length / PODS_LISTED), signal);
  }
}

// The pods of all pages.
async function allPods(signal) {
  const found = await get("/v1/pods", null, signal);
  for (let {next} = found; next;) {
    const page = await get("/v1/pods", {after: next}, signal);
    found.pods.push(...page.pods);
    next = page.next;
  }
  return found;
}

function showPods(summary, list, {version, pods}, rollout, denied) {
  const running = pods.filter((it) => !it.refused && it.accepted === version).length;
  const refused = pods.filter((it) => it.refused).length;
  summary.textContent = pods.length ? `${running} of ${plural(pods.length, "pod")} `
    + `${running === 1 ? "runs" : "run"} version ${version}`
    + `${refused ? `; ${refused} refused it` : ""}` : "No pod is connected.";
  summary.className = refused ? "bad" : running === pods.length && running ? "good" : "warn";
  if (!pods.length) return fill(list);
  const rank = (it) => it.refused ? 0 : it.accepted === version ? 2 : 1;
  const first = pods.sort((a, b) => rank(a) - rank(b)).slice(0, PODS_LISTED);
  const rest = pods.length - first.length;
  fill(list, isOpen(rollout) && hitsBox(rollout), versionsTable(pods, version), deniedTables(denied),
    table("What each is sent and runs", [["node", "name"], ["state"], ["runs", "n"],
      ["sent", "n"], ["program"], ["type"], ["address"], ["connected"]],
    first.map((it) => podRow(it, version))),
    rest > 0 && h("p", {class: "soft"}, `and ${plural(rest, "more pod")}`));
}

// The fleet by what its pods run.
function versionsTable(pods, version) {
  const groups = new Map();
  for (const {accepted, rollouts = []} of pods) {
    const key = JSON.stringify([accepted, rollouts.join(", ")]);
    groups.set(key, (groups.get(key) || 0) + 1);
  }
  const rows = [...groups].map(([key, n]) => [...JSON.parse(key), n])
    .sort(([a, , n], [b, , m]) => b - a || m - n);
  return table("The fleet by version", [["version", "name"], ["pods", "n"], ["share", "n"]],
    rows.map(([accepted, rollouts, n]) => [[accepted ? `Version ${accepted}` : "none",
      accepted === version && tag("newest", "good"), rollouts && tag(`rollout ${rollouts}`)],
    count(n), share(n, pods.length)]));
}

// While replicas are replaced, one of an older release may answer.
function ofOlderReplica(problem) {
  if (problem.status !== 404) throw problem;
  return {domains: [], keys: []};
}

// What pods report of the last one to two minutes: a large fleet has only its first lines here.
function deniedTables({domains, keys}) {
  return [domains.length > 0 && table("Denied in the last one to two minutes, by domain",
    [["domain", "name"], ["share", "n"], ["denied", "n"], ["hits", "n"], ["in shadow", "n"],
      ["pods", "n"], ["busiest pod"]],
    domains.map((it) => [it.domain, share(it.denied, it.hits), count(it.denied), count(it.hits),
      count(it.shadow_denied), count(it.pods),
      h("span", {title: it.busiest.peer},
        `${it.busiest.node || "(no id)"}: ${share(it.busiest.hits, it.hits)}`)]), "denied"),
  keys.length > 0 && table("The hottest keys",
    [["key", "name"], ["rule"], ["hits", "n"], ["denied", "n"], ["pods", "n"]],
    keys.map((it) => [h("span", {title: it.key}, it.values || it.key), it.rule, count(it.hits),
      count(it.denied), count(it.pods)]), "hot")];
}

// What all pods deny of each domain of a rollout: they report hits while one is under way.
function hitsBox(rollout) {
  const {rollout: id, domains} = rollout;
  return [underWay(rollout), table(`Hits since the stage of rollout ${id} began`,
    [["domain", "name"], ["hits", "n"], ["denied", "n"]], domains.map(({domain, chosen, others}) =>
      [domain, count(chosen.hits + others.hits),
        share(chosen.denied + others.denied, chosen.hits + others.hits)]))];
}

function podRow(pod, version) {
  const [words, look] = pod.refused ? [`▲ refused version ${pod.refused}`, "bad"]
    : pod.accepted === version ? ["● current", "good"] : ["◆ behind", "warn"];
  return [pod.node || "(no id)", [h("span", {class: `${look} whole`}, words),
    pod.fault && h("div", {class: "fault"}, pod.fault)],
  String(pod.accepted || "none"), String(pod.sent || "none"), pod.agent, pod.type.split(".").at(-1),
  pod.peer, time(pod.connected_at)];
}
