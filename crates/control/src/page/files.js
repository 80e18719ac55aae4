// === Rule files, in and out: each has one domain ===

const URL_MS = 60000;

async function filesView(main, {signal}) {
  const domains = await allDomains(signal);
  const place = h("div");
  const save = (...what) => async (event) => {
    try {
      event.target.disabled = true;
      await download(...what);
      fill(place);
    } catch (problem) {
      showProblem(place, problem);
    } finally {
      event.target.disabled = false;
    }
  };
  fill(main, h("div", {class: "bar"}, h("h2", {tabindex: -1}, "Rule files")),
    mayWrite() && importSection(), h("section", {id: "exporting"}, h("h3", {}, "Export"), place,
      domains.length > 1 && button(`Save all ${count(domains.length)} as one archive`,
        save({format: "tar"}, "rules.tar", "application/x-tar"), "", {id: "export-all"}),
      domains.length ? table("The draft, one file for each domain", [["domain", "name"],
        ["rules", "n"], ["published"], ["file"]], domains.map((it) => [it.domain, count(it.rules),
        it.is_changed ? "with other rules" : "the same", button("Save", save({domain: it.domain},
          `${it.domain}.yaml`, "application/yaml"), "quiet",
        {"aria-label": `Save ${it.domain}.yaml`})]))
        : h("p", {class: "soft"}, "There are no rules yet.")));
}

// Has the browser save an export as a file. An archive of rule files is text, too.
async function download(query, name, type) {
  const {text} = await call("GET", "/v1/export", {query});
  const href = URL.createObjectURL(new Blob([text], {type}));
  h("a", {href, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(href), URL_MS);
}

function importSection() {
  const file = h("input", {type: "file", multiple: true, accept: ".yaml,.yml"});
  const reason = textInput("", {maxlength: 1000});
  const result = h("div", {id: "imported", role: "status"});
  const form = h("form", {novalidate: true},
    h("p", {class: "soft"}, "A file becomes the draft of its domain; rules of the draft that it "
      + "lacks are removed. Pods keep what is published until you publish."),
    h("div", {class: "fields"}, field("files", "Files", file, "or drop them here"),
      field("reason", "Why", reason, "for the history")),
    h("div", {class: "actions"}, h("button", {type: "submit", class: "main", id: "import"},
      "Import into the draft")), result);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    importFiles(form, result, [...file.files], reason.value.trim());
  });
  acceptDrops(form, (dropped) => { file.files = dropped; });
  return h("section", {id: "importing"}, h("h3", {}, "Import"), form);
}

async function importFiles(form, result, files, reason) {
  const faults = files.length ? [] : [{field: "files", message: "none is chosen"}];
  if (showFaults(form, faults), faults.length) return;
  await busy(form, async () => {
    try {
      const read = await Promise.all(files.map(async (it) =>
        ({name: it.name, yaml: await textOf(it, "Split the domain.")})));
      const {body} = await call("POST", "/v1/import", {body: {files: read}, query: {reason}});
      fill(result, table("Now in the draft", [["domain", "name"], ["rules", "n"], ["changed", "n"]],
        body.domains.map((it) => [it.domain, count(it.rules), count(it.changed)])),
      h("p", {}, h("a", {href: "#/changes"}, "Look at the changes")));
      refreshChanged();
    } catch (problem) {
      showProblem(result, problem);
    }
  });
}
