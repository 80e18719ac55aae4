// === Saving a rule, and what may stand against it ===

async function save(editor, etag = editor.etag) {
  if (!mayEdit(editor.rule)) return;
  await busy(editor.form, async () => {
    showProblem(editor.problem);
    showFaults(editor.form, []);
    try {
      const body = ruleTyped(editor), query = {reason: editor.reason.value.trim()};
      const {rule} = editor;
      if (editor.where.value) return await saveInSet(editor, body, settingsOf(body));
      const answer = rule.id
        ? await call("PUT", `/v1/rules/${encodeURIComponent(rule.id)}`, {body, query, headers: {"if-match": etag}})
        : await call("POST", "/v1/rules", {body, query});
      saved(editor, answer);
    } catch (problem) {
      refused(editor, problem);
    }
  });
}

function saved(editor, {body, etag}) {
  unsaved.delete(editor.key);
  location.hash = `#/rules/${body.id}`;
  if (editor.rule.id === body.id) {
    openEditor(editor.main, body, etag, editor.of);
    showHistory(editor.main, body.id);
  }
  showNotice("Saved in the draft. Pods keep what is published until you publish.",
    h("a", {href: "#/changes", id: "to-changes"}, "Look at the changes"));
  refreshChanged();
}

function refused(editor, problem) {
  if (problem.status === 412 && problem.body.current) return showConflict(editor, problem);
  const rest = showFaults(editor.form, problem.errors || []);
  const isBeside = problem.errors?.length > 0;
  const shown = isBeside ? Object.assign(problem, {errors: rest}) : problem;
  const current = problem.status === 409 && problem.body.current;
  const link = current && h("p", {}, h("a", {href: `#/rules/${current.id}`}, "Open that rule"));
  showProblem(editor.problem, shown, isBeside ? null : () => save(editor), link);
  if (isBeside) editor.form.querySelector("[aria-invalid]")?.focus();
}

// Another editor was first: shows what is there now beside what is typed here, which is kept.
function showConflict(editor, problem) {
  const {current, last_change: last} = problem.body, etag = `"${current.revision}"`;
  let mine;
  try { mine = settingsOf(ruleTyped(editor)); } catch { mine = {}; }
  const [was, now, own] = [flat(settingsOf(editor.rule)), flat(settingsOf(current)), flat(mine)];
  const names = [...new Set([was, now, own].flatMap(Object.keys))].sort()
    .filter((name) => was[name] !== now[name] || now[name] !== own[name]);
  const words = (value) => value === undefined ? "–" : value;
  const rows = names.map((name) => [name, words(was[name]), words(now[name]), words(own[name])]);
  problem.message = "Another editor changed this rule since you opened it.";
  const by = last && h("p", {}, "Changed by ", author(last.author), " at ", time(last.at),
    last.reason && `: ${last.reason}`);
  showProblem(editor.problem, problem, null, by,
    table("What differs", [["setting", "name"], ["when you opened it"], ["now"], ["yours"]], rows),
    h("div", {class: "actions"},
      button("Save mine over it", () => save(editor, etag), "", {id: "keep-mine"}),
      button("Take what is there now", () => takeTheirs(editor, current, etag), "",
        {id: "take-theirs"})));
  // Not at a button: neither choice is taken by a key that was meant for the field.
  editor.problem.firstElementChild.focus();
}
function takeTheirs(editor, current, etag) {
  unsaved.delete(editor.key);
  openEditor(editor.main, current, etag, editor.of);
  showHistory(editor.main, current.id);
}

async function removeRule(editor) {
  const {rule, etag, reason} = editor;
  await busy(editor.form, async () => {
    try {
      const query = {reason: reason.value.trim()};
      if (editor.where.value) return await saveInSet(editor, rule, null);
      await call("DELETE", `/v1/rules/${encodeURIComponent(rule.id)}`, {query, headers: {"if-match": etag}});
      unsaved.delete(editor.key);
      location.hash = "#/rules";
      showNotice("Removed from the draft. Pods keep it until you publish.",
        h("a", {href: "#/changes"}, "Look at the changes"));
      refreshChanged();
    } catch (problem) {
      refused(editor, problem);
    }
  });
}

// Who changed the rule, when and why.
async function showHistory(main, id, signal) {
  const {changes} = await get(`/v1/rules/${encodeURIComponent(id)}/history`, {limit: 20}, signal);
  const item = (it) => h("div", {class: "change"}, time(it.at), " ", author(it.author), " ",
    it.before ? it.after ? "changed it" : "removed it" : "added it", it.reason && `: ${it.reason}`,
    settingChanges(it.before, it.after));
  main.querySelector("#history")?.remove();
  main.append(h("section", {id: "history"}, h("h3", {}, "History"), changes.map(item)));
}
