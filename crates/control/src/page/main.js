// === Parts, keys and the token ===

const REFRESH_MS = 10000;
const VIEWS = {rules: [rulesView, ruleView], changes: [changesView],
  "change-sets": [setsView, setView], rollouts: [rolloutsView, rolloutView],
  versions: [versionsView, versionView], files: [filesView], pods: [podsView],
  access: [accessView], audit: [auditView]};

let shown = new AbortController(), notice = null, last_hash = "";

// The part that the address names, as in #/rules/ID?q=login.
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [part, id] = path.split("/");
  return {part: VIEWS[part] ? part : "rules", id, query: new URLSearchParams(query)};
}

// The name in an address, which a link that was cut off has in part.
function decoded(id) {
  try {
    return id && decodeURIComponent(id);
  } catch {
    throw new Problem(404, {detail: `the address ends within a name, as “${id}” does: a part of the `
      + "link is missing. Copy all of it"});
  }
}

// Shows the part of the address. A part that fails says why, and can be tried again.
async function show() {
  shown.abort();
  shown = new AbortController();
  const {signal} = shown, {part, id, query} = place(), main = $("main");
  const [all, one] = VIEWS[part];
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${part}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    await (id && one ? one : all)(main, {id: decoded(id), query, signal});
    if (!signal.aborted) arrive(main);
  } catch (problem) {
    if (signal.aborted) return;
    fill(main, h("section", {}, problemBox(problem, () => show())));
  }
}

// Puts the notice of the last action first, and the focus at the heading of the part.
function arrive(main) {
  const heading = main.querySelector("h2");
  if (heading) document.title = `${heading.textContent} · ratelease control`;
  if (notice && !notice.isConnected) main.prepend(notice);
  const active = document.activeElement;
  if (active !== document.body && !active?.closest("nav")) return;
  const opened = [...main.querySelectorAll("[data-list] a")].find((it) => it.hash === last_hash);
  (opened || heading)?.focus();
}

// Tells what an action did; it stays until the next part but one.
function showNotice(words, ...more) {
  const said = h("section", {id: "notice"}, h("span", {class: "good"}, `● ${words} `), more);
  notice?.remove();
  notice = said;
  announce(words);
  addEventListener("hashchange", () => addEventListener("hashchange", () => {
    if (notice === said) notice = null;
    said.remove();
  }, {once: true}), {once: true});
  $("main").prepend(said);
}

// The number of domains with changes that are not published, in the heading.
let refreshing = false;
async function refreshChanged(known) {
  if (refreshing && !known) return;
  refreshing = !known;
  const asked = () => getAll("/v1/domains", "domains", {is_background: true});
  const domains = known || await asked().catch(() => []);
  refreshing = false;
  const n = domains.filter((it) => it.is_changed).length;
  $("changed").textContent = n;
  $("changed").title = `${plural(n, "domain")} with changes`;
  $("changed").hidden = n === 0;
}

// Asks for a token until one is accepted. Requests that wait for it go on then.
let signing = null;
function signIn(why) {
  signing ||= askForToken(why).finally(() => { signing = null; });
  return signing;
}
async function askForToken(why) {
  // Where there is a provider, the browser may have a session, whose cookie no script can read.
  let fault = why, may_have_session = hasProvider() && !session.token && !why;
  for (;;) {
    const isKnown = session.token && !fault || may_have_session;
    if (!isKnown) session.token = await typedToken(fault);
    try {
      session.caller = (await call("GET", "/v1/token")).body;
      break;
    } catch (problem) {
      if (may_have_session && problem.status === 401) {
        may_have_session = false;
        continue;
      }
      fault = problem.status === 401 ? "The token is not known, expired or revoked. Check that all "
        + "of it was copied, or ask for another one." : problem.message;
    }
  }
  if (session.token) sessionStorage.setItem("token", session.token);
  const {name, access, domains} = session.caller;
  const of = domains ? ` of ${domains.join(", ")}` : "";
  $("caller").textContent = `${name.split("/")[0]}: ${access}${of}`;
  $("sign-out").hidden = false;
  $("nav-audit").hidden = access !== "admin";
}
const hasProvider = () => document.documentElement.dataset.signIn !== undefined;
function typedToken(fault) {
  const dialog = $("sign-in"), input = $("token");
  $("sign-in-provider").hidden = !hasProvider();
  $("sign-in-fault").hidden = !fault;
  $("sign-in-fault").textContent = fault || "";
  input.value = "";
  if (!dialog.open) dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.querySelector("form").onsubmit = () => resolve(input.value.trim());
  });
}
async function signOut() {
  // A session that cannot be ended now ends by itself.
  if (session.caller?.is_session) await call("POST", "/v1/sign-out").catch(() => null);
  sessionStorage.removeItem("token");
  unsaved.clear();
  location.replace(location.pathname);
}

// Keys that work everywhere but in a field.
const isTyping = (element) => element.matches?.("input, select, textarea");
function onKey(event) {
  if ($("sign-in").open) return;
  const {key, target} = event;
  if ((event.ctrlKey || event.metaKey) && key === "s") {
    event.preventDefault();
    return document.querySelector("#editor form")?.requestSubmit();
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (key === "Escape") return onEscape(target);
  const isSearch = target.id === "search";
  if (isTyping(target) && !(isSearch && key === "ArrowDown")) return;
  const step = {j: 1, ArrowDown: 1, k: -1, ArrowUp: -1}[key];
  if (step && moveInList(step)) event.preventDefault();
  else if (key === "/") { event.preventDefault(); focusSearch(); }
}
function onEscape(target) {
  if (target.id === "search" && target.value) {
    target.value = "";
    return target.dispatchEvent(new Event("input"));
  }
  const close = $("close");
  if (close) history.length > 1 && came_from ? history.back() : close.click();
  else if (isTyping(target)) target.blur();
}
async function focusSearch() {
  if (!$("search")) {
    location.hash = "#/rules";
    await new Promise((resolve) =>
      addEventListener("hashchange", () => setTimeout(resolve), {once: true}));
  }
  $("search")?.focus();
}

// The list that an editor was opened from is shown again as it was.
let came_from = false;
addEventListener("hashchange", (event) => {
  const [before, after] = [event.oldURL, event.newURL].map((it) => new URL(it).hash.split("?")[0]);
  last_hash = new URL(event.oldURL).hash;
  came_from = after !== ""
    && ["", "#/rules", "#/versions", "#/changes", "#/change-sets", "#/rollouts"].includes(before);
  show();
});
addEventListener("keydown", onKey);
addEventListener("beforeunload", (event) => { if (unsaved.size) event.preventDefault(); });
$("sign-in").addEventListener("cancel", (event) => event.preventDefault());
$("sign-out").addEventListener("click", signOut);
setInterval(() => { if (!document.hidden && session.caller) refreshChanged(); }, REFRESH_MS);

await signIn();
refreshChanged();
await show();
