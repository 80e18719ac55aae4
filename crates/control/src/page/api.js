// === The API ===

// The token is kept for this tab alone.
const session = {token: sessionStorage.getItem("token") || "", caller: null};

const TRIES_MAX = 8, WAIT_MAX = 5000, ANSWER_MAX = 15000, LONG_ANSWER_MAX = 75000;
const LONG = ["/v1/check", "/v1/publish", "/v1/discard", "/v1/rollback", "/v1/replay", "/v1/differences",
  "/v1/rollouts", "/v1/import", "/v1/export"];

// A refusal of the API, or a connection that was lost.
class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `status ${status}`);
    // A form is no file.
    const errors = (body.errors || []).map((it) =>
      ({...it, message: it.message.replace(/^error loading config file: /, "")}));
    Object.assign(this, {status, body, errors, kind: body.type?.split(":").at(-1)});
  }
}

const sleep = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, {once: true});
});

// Not crypto.randomUUID, which needs HTTPS or localhost.
const randomKey = () => [...crypto.getRandomValues(new Uint8Array(16))]
  .map((byte) => byte.toString(16).padStart(2, "0")).join("");

function state(words, name) {
  if ($("state").textContent !== words) $("state").textContent = words;
  $("state").className = name;
}
let lost_at = null;
function connected() {
  lost_at = null;
  state("● connected", "good");
}
function lost(why) {
  lost_at ||= new Date().toLocaleTimeString();
  state(`▲ ${why} since ${lost_at}; trying again`, "bad");
}

// Sends a request until it is answered. Writes carry a key, with which a repeat does nothing twice.
// One in the background asks for no token: the dialog would take what is typed elsewhere.
async function call(method, path, {body, query, headers, signal, is_background} = {}) {
  const url = query ? `${path}?${new URLSearchParams(query)}` : path;
  const all = {...headers};
  if (method !== "GET") all["idempotency-key"] = randomKey();
  if (body !== undefined) all["content-type"] = "application/json";
  const text = body === undefined ? undefined : JSON.stringify(body);
  for (let tries = 1; ; tries += 1) {
    // Without a token, the browser sends the cookie of the session that it has, if any.
    if (session.token) all.authorization = `Bearer ${session.token}`;
    else delete all.authorization;
    const answer = await send(url, {method, headers: all, body: text}, signal);
    signal?.throwIfAborted();
    if (answer?.ok) return answer;
    if (answer?.status === 401 && path !== "/v1/token" && !is_background) {
      await signIn(answer.body.detail);
      continue;
    }
    if (!isTransient(answer) || (method !== "GET" && tries >= TRIES_MAX)) {
      throw new Problem(answer?.status || 0, answer?.body || {});
    }
    lost(answer ? answer.status === 429 ? "busy" : "the database is away" : "no connection");
    const wait = Number(answer?.headers.get("retry-after")) * 1000 || 500 * 2 ** (tries - 1);
    await sleep(Math.min(wait, WAIT_MAX), signal);
  }
}
const isTransient = (answer) => !answer || [429, 502, 503, 504].includes(answer.status);

// The answer with its body read; null if the connection was lost.
async function send(url, request, signal) {
  const is_long = LONG.some((path) => url.startsWith(path));
  const late = AbortSignal.timeout(is_long ? LONG_ANSWER_MAX : ANSWER_MAX);
  const signals = signal ? [late, signal] : [late];
  try {
    const answer = await fetch(url, {...request, signal: AbortSignal.any(signals),
      cache: "no-store", credentials: "same-origin", redirect: "error"});
    const text = await answer.text();
    const isJson = (answer.headers.get("content-type") || "").includes("json");
    const {ok, status, headers} = answer;
    if (!isTransient(answer)) connected();
    return {ok, status, headers, etag: headers.get("etag"), text,
      body: isJson ? JSON.parse(text) : {detail: text}};
  } catch {
    return null;
  }
}

const get = async (path, query, signal) => (await call("GET", path, {query, signal})).body;

// All items of a list, page by page: `name` is that of the list, `from` the parameter that takes `next`.
async function getAll(path, name, {query, from = "after", ...options} = {}) {
  const all = [];
  for (let next = null; ;) {
    const asked = {...query, ...(next != null && {[from]: next})};
    const {body} = await call("GET", path, {query: asked, ...options});
    all.push(...body[name]);
    next = body.next;
    if (next == null) return all;
  }
}
const allDomains = (signal) => getAll("/v1/domains", "domains", {signal});
const mayWrite = () => ["write", "admin"].includes(session.caller?.access);
