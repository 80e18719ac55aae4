// === Words ===

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const tenth = new Intl.NumberFormat("en", {maximumFractionDigits: 1});
const count = (n) => whole.format(n);
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || `${one}s`}`;
const share = (part, all) => all > 0 ? `${tenth.format(100 * part / all)} %` : "0 %";

// A time in this browser's zone, with the exact one as a title.
function time(at) {
  const then = new Date(at);
  const pad = (n) => String(n).padStart(2, "0");
  const day = `${then.getFullYear()}-${pad(then.getMonth() + 1)}-${pad(then.getDate())}`;
  const clock = [then.getHours(), then.getMinutes(), then.getSeconds()].map(pad).join(":");
  return h("time", {datetime: at, title: at, class: "whole"}, `${day} ${clock}`);
}

// Entries as one text, as in "user_id › path=/login".
function entriesWords(entries) {
  return entries.map((it) => it.value ? `${it.key}=${it.value}` : it.key).join(" › ");
}

// The limit of a rule, as in "100 / minute".
function limitWords({rate_limit: limit}) {
  if (!limit) return "no limit";
  if (limit.unlimited) return "unlimited";
  if (limit.replaces && limit.requests_per_unit === undefined) return "replaces others";
  const amount = limit.requests_per_unit;
  const shown = typeof amount === "number" ? count(amount) : amount;
  if (limit.algorithm === "concurrency") return `${shown} at a time`;
  const many = limit.unit_multiplier > 1 ? `${limit.unit_multiplier} ${limit.unit}s` : limit.unit;
  return `${shown} / ${many}`;
}

// What else a list says of a rule.
function moreWords(rule) {
  const limit = rule.rate_limit || {};
  const words = [];
  if (limit.algorithm && limit.algorithm !== "fixed_window") {
    words.push(limit.algorithm.replaceAll("_", " "));
  }
  if (limit.burst) words.push(`burst ${count(limit.burst)}`);
  if (limit.failure_mode) words.push(`on failure ${limit.failure_mode}`);
  if (limit.name) words.push(`named ${limit.name}`);
  return words.join(", ");
}

// The object of Kubernetes that defines a domain, or the domain of a rule, as NAMESPACE/NAME.
const ownerOf = (it) => it?.owner || it?.object || null;

// The name of a token without its id, which is in the title.
function author(name) {
  return h("span", {title: name}, name.split("/")[0]);
}

// The settings of a rule as fields with dots: {"rate_limit.unit": "hour"}.
function flat(settings, prefix = "", into = {}) {
  for (const [key, value] of Object.entries(settings || {})) {
    const isMap = value && typeof value === "object" && !Array.isArray(value);
    if (isMap) flat(value, `${prefix}${key}.`, into);
    else into[prefix + key] = JSON.stringify(value);
  }
  return into;
}

// Only what a rule says, without what the API adds.
function settingsOf(rule) {
  const {id, domain, entries, position, revision, updated_at, updated_by, owner,
    ...settings} = rule;
  return settings;
}
