// === Pods: who runs which version ===

const PODS_MS = 1000;

async function podsView(main, {signal}) {
  const summary = h("p", {id: "pods-summary", role: "status"}), list = h("div", {id: "pods"});
  fill(main, h("section", {}, h("div", {class: "tools"}, h("h2", {tabindex: -1}, "Pods")),
    summary, list));
  arrive(main);
  let last = "";
  while (!signal.aborted) {
    const found = await get("/v1/pods", null, signal);
    // Drawn only if something changed, so that a selection stays.
    if (JSON.stringify(found) !== last) showPods(summary, list, found);
    last = JSON.stringify(found);
    await sleep(PODS_MS, signal);
  }
}

// Streams of one pod for both types are one line if they say the same.
function folded(pods) {
  const lines = new Map();
  for (const {type, ...rest} of pods) {
    const {node, peer, accepted, refused, fault} = rest;
    const key = JSON.stringify([node, peer, accepted, refused, fault]);
    const name = type.split(".").at(-1), known = lines.get(key);
    lines.set(key, {...rest, types: known ? [...known.types, name] : [name]});
  }
  return [...lines.values()];
}

function showPods(summary, list, {version, pods}) {
  const lines = folded(pods);
  const running = lines.filter((it) => !it.refused && it.accepted === version).length;
  const refused = lines.filter((it) => it.refused).length;
  summary.textContent = lines.length ? `${running} of ${plural(lines.length, "pod")} `
    + `${running === 1 ? "runs" : "run"} version ${version}`
    + `${refused ? `; ${refused} refused it` : ""}` : "No pod is connected.";
  summary.className = refused ? "bad" : running === lines.length && running ? "good" : "warn";
  if (!lines.length) return fill(list);
  fill(list, table("What each is sent and runs", [["node", "name"], ["state"], ["runs", "n"],
    ["sent", "n"], ["program"], ["types"], ["address"], ["connected"]],
  lines.map((it) => podRow(it, version))));
}

function podRow(pod, version) {
  const [words, look] = pod.refused ? [`▲ refused version ${pod.refused}`, "bad"]
    : pod.accepted === version ? ["● current", "good"] : ["◆ behind", "warn"];
  return [pod.node || "(no id)", [h("span", {class: `${look} whole`}, words),
    pod.fault && h("div", {class: "fault"}, pod.fault)],
  String(pod.accepted || "none"), String(pod.sent || "none"), pod.agent, pod.types.join(", "),
  pod.peer, time(pod.connected_at)];
}
