// === Fields of a rule ===
// Each field has the name that the API gives its faults, in data-field. What is typed goes to the
// compiler as it is, so that faults are the compiler's own.

// RULE_MAPS are the JSON Schemas of the maps of a rule file: choices and flags are those of the
// compiler.
const {descriptor: OF_DESCRIPTOR, rate_limit: OF_LIMIT} = RULE_MAPS;

// The words that an option of `rate_limit` takes, after what stands for none of them.
const choicesOf = (name, none) =>
  [none, ...OF_LIMIT.properties[name].anyOf.find((it) => it.enum).enum];

// The options of a descriptor that are true or false: name, meaning.
const FLAGS = Object.entries(OF_DESCRIPTOR.properties)
  .filter(([, {type}]) => type?.includes("boolean") && type.length === 2)
  .map(([name, {description}]) => [name, description]);

const KINDS = [["limited", "a limit"], ["unlimited", "unlimited"],
  ["none", "no limit, and no wildcard beside it applies"]];

// The fields of `rate_limit` that have an input: name, label, choices, hint.
const LIMIT_FIELDS = [
  ["requests_per_unit", "Requests", null, "0 denies all"],
  ["unit", "Unit", choicesOf("unit", ["", "–"])],
  ["unit_multiplier", "Units in a window", null, "5 with minute: in 5 minutes"],
  ["algorithm", "Algorithm", choicesOf("algorithm", ""), "by default that of the domain"],
  ["burst", "Burst", null, "of a token bucket"],
  ["failure_mode", "When Redis is away", choicesOf("failure_mode", ""), "by default local"],
];

let ids = 0;

// An input with an id, for a label elsewhere.
function idOf(input) {
  ids += 1;
  input.id = `field-${ids}`;
  return input;
}

// An input with its label, its hint and a place for its faults.
function field(name, label, input, hint) {
  ids += 1;
  const [id, of_fault] = [input.id || `field-${ids}`, `fault-${ids}`];
  input.id = id;
  input.dataset.field = name;
  const described = [hint && `hint-${ids}`, of_fault].filter((it) => it).join(" ");
  input.setAttribute("aria-describedby", described);
  const words = hint && h("div", {class: "hint", id: `hint-${ids}`}, hint);
  const faults = h("div", {id: of_fault, "data-faults": name});
  const shown = input.type === "checkbox" ? [input, h("label", {for: id}, label)]
    : [h("label", {for: id}, label), input];
  const look = input.type === "checkbox" ? "field check" : "field";
  return h("div", {class: look}, shown, words, faults);
}

const textInput = (value, more) => {
  const input = h("input", {type: "text", autocomplete: "off", spellcheck: "false", ...more});
  input.value = value ?? "";
  return input;
};
function choice(choices, value) {
  const known = choices.map((it) => Array.isArray(it) ? it : [it, it || "default"]);
  if (value && !known.some(([name]) => name === value)) known.push([value, value]);
  const select = h("select", {}, known.map(([name, words]) => h("option", {value: name}, words)));
  select.value = value || known[0][0];
  return select;
}
const checkbox = (checked) => {
  const input = h("input", {type: "checkbox"});
  input.checked = checked;
  return input;
};

// A whole number that is typed into a field; throws a fault of that field.
function typedNumber(field, text) {
  const number = /^\d{1,16}$/.test(text) ? Number(text) : NaN;
  if (Number.isSafeInteger(number)) return number;
  throw new Problem(422, {detail: "A field is no number.", errors: [{field,
    message: `expected a whole number, 0 or more, as in 100; found “${text}”`}]});
}

// The settings that have no input, for the field of further settings.
function further(settings) {
  const {rate_limit: limit, ...rest} = settings;
  for (const [name] of FLAGS) delete rest[name];
  const known = [...LIMIT_FIELDS.map(([name]) => name), "unlimited"];
  const others = Object.entries(limit || {}).filter(([name]) => !known.includes(name));
  if (others.length) rest.rate_limit = Object.fromEntries(others);
  return rest;
}

// Whether a form lacks the reason for what it would do, which it says then.
function lacksReason(form, reason) {
  showFaults(form, reason ? [] : [{field: "reason", message: "is missing; say why"}]);
  return !reason;
}

// The inputs for these settings.
function settingInputs(settings) {
  const limit = settings.rate_limit || {};
  const kind = settings.rate_limit ? limit.unlimited ? "unlimited" : "limited" : "none";
  const inputs = {kind: choice(KINDS, kind),
    further: h("textarea", {spellcheck: "false", rows: 5})};
  for (const [name] of FLAGS) inputs[name] = checkbox(settings[name] === true);
  for (const [name, , choices] of LIMIT_FIELDS) {
    inputs[name] = choices ? choice(choices, limit[name])
      : textInput(limit[name], {inputmode: "numeric"});
  }
  const rest = further(settings);
  inputs.further.value = Object.keys(rest).length ? JSON.stringify(rest, null, 2) : "";
  return inputs;
}

// The settings that are typed; throws a fault of the field of further settings.
function settingsTyped(inputs) {
  const settings = furtherTyped(inputs.further.value);
  for (const [name] of FLAGS) if (inputs[name].checked) settings[name] = true;
  if (inputs.kind.value === "none") return settings;
  const limit = {...settings.rate_limit};
  settings.rate_limit = limit;
  if (inputs.kind.value === "unlimited") limit.unlimited = true;
  for (const [name] of LIMIT_FIELDS) {
    const text = inputs[name].value.trim();
    const isUsed = inputs.kind.value === "limited" || name === "failure_mode";
    if (text && isUsed) limit[name] = inputs[name].tagName === "SELECT" ? text
      : typedNumber(`rate_limit.${name}`, text);
  }
  return settings;
}
function furtherTyped(text) {
  const refuse = (message) => new Problem(422, {detail: "The further settings cannot be read.",
    errors: [{field: "further", message}]});
  if (!text.trim()) return {};
  let read;
  try {
    read = JSON.parse(text);
  } catch (error) {
    throw refuse(`not JSON: ${error.message}`);
  }
  if (!read || typeof read !== "object" || Array.isArray(read)) {
    throw refuse('expected a map, as in {"rate_limit": {"name": "login"}}');
  }
  return read;
}

// Shows each fault beside its field; returns those that have none.
function showFaults(form, errors) {
  form.querySelectorAll("[data-faults]").forEach((place) => fill(place));
  form.querySelectorAll("[aria-invalid]").forEach((it) => it.removeAttribute("aria-invalid"));
  const rest = errors.filter(({field: name, message}) => {
    const place = placeOf(form, name);
    if (!place) return true;
    const words = place.dataset.faults === name ? message : `${name}: ${message}`;
    place.append(h("p", {class: "fault"}, words));
    place.closest(".field")?.querySelector("[data-field]")?.setAttribute("aria-invalid", "true");
    return false;
  });
  form.querySelector("[aria-invalid]")?.focus();
  return rest;
}

// The place of a fault: that of its field, else that of the text that has the field, else that of
// the group that the field belongs to.
function placeOf(form, name) {
  const places = [...form.querySelectorAll("[data-faults]")];
  const of = (wanted) => places.find((it) => it.dataset.faults === wanted && isShown(it));
  const [top, ...below] = name.split(/[.[]/);
  const text = form.querySelector("[data-field=further]")?.value || "";
  const isFurther = text.includes(`"${below[0] || top}"`);
  return of(name) || (isFurther && of("further")) || of(top);
}
const isShown = (element) => !element.closest("[hidden]");
