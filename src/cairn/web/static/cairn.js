"use strict";
/* Live values, dialogs that ask before they change something, copying. All text goes in as text, never as HTML. */
(() => {
  const size = (n) => { for (const u of ["B", "KiB", "MiB", "GiB"]) { if (n < 1024) return (u === "B" ? n.toFixed(0) : n.toFixed(1)) + " " + u; n /= 1024; } return n.toFixed(1) + " TiB"; };
  const duration = (ms) => {
    if (ms < 0) return "-" + duration(-ms);
    if (ms < 1000) return ms.toFixed(0) + " ms";
    const s = ms / 1000;
    if (s < 60) return s.toFixed(1) + " s";
    const whole = Math.floor(s);
    for (const [length, unit, below, smaller] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
      if (whole >= length) { const rest = Math.floor((whole % length) / below); return Math.floor(whole / length) + " " + unit + (rest ? " " + rest + " " + smaller : ""); }
    }
    return whole + " s";
  };
  const shown = { size, duration, number: (n) => String(n), status: (s) => s };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.copy !== undefined) {
      navigator.clipboard.writeText(button.dataset.copy).then(() => { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); }, () => {});
    } else if (button.dataset.open) {
      const dialog = document.getElementById(button.dataset.open);
      if (dialog) { fill(dialog, button); const told = dialog.querySelector(".outcome"); told.textContent = ""; told.classList.remove("failed"); dialog.showModal(); dialog.querySelector(dialog.querySelector(".danger") ? "[value=close]" : "[data-go]").focus(); }
    } else if (button.dataset.go !== undefined) {
      change(button.closest("form"), button);
    }
  });

  /* One dialog for many rows: what the button of the row says goes in. */
  function fill(dialog, button) {
    if (button.dataset.target === undefined) return;
    for (const place of dialog.querySelectorAll("[data-fill]")) place.textContent = button.dataset[place.dataset.fill];
    dialog.querySelector("[name=target]").value = button.dataset.target;
    dialog.querySelector("[data-copy]").dataset.copy = button.dataset.command;
    dialog.querySelector("[data-go]").disabled = false;
  }

  /* What was deleted is not shown any longer. */
  for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", () => { if (dialog.dataset.done) location.reload(); });

  async function change(form, button) {
    const action = form.dataset.action, url = form.dataset.url, told = form.querySelector(".outcome");
    if (!form.reportValidity()) return;
    const target = form.elements.target ? form.elements.target.value : null;
    const id = "web-" + Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");
    const body = { triggerId: id };
    if (action === "dispose") body["savepoint-path"] = target;
    else if (target) body[action === "stop" ? "targetDirectory" : "target-directory"] = target;
    if (action === "stop") body.drain = form.elements.drain.checked;
    const say = (text, failed) => { told.textContent = text; told.classList.toggle("failed", Boolean(failed)); };
    button.disabled = true;
    say(action === "dispose" ? "Deleting …" : "Waiting for the job …");
    try {
      const cancel = action === "cancel";
      const places = { cancel: "?mode=cancel", stop: "/stop", savepoint: "/savepoints", dispose: "" };
      const answer = await fetch(url + places[action],
        { method: cancel ? "PATCH" : "POST", headers: { "Content-Type": "application/json" }, body: cancel ? "{}" : JSON.stringify(body), credentials: "same-origin" });
      const document_ = await answer.json();
      if (!answer.ok) { say([document_.detail, document_.remedy].filter(Boolean).join(". "), true); return; }
      const done = await follow(url + (action === "dispose" ? "/" : "/savepoints/") + document_["request-id"], say, action);
      if (done && action === "dispose") { form.closest("dialog").dataset.done = "yes"; form.querySelector("[value=close]").focus(); }
    } catch (error) {
      say("The server did not respond: " + error.message, true);
    } finally {
      button.disabled = false;
    }
  }

  async function follow(url, say, action) {
    const began = Date.now();
    for (;;) {
      const answer = await fetch(url, { credentials: "same-origin" });
      const told = await answer.json();
      if (!answer.ok) { say(told.detail, true); return false; }
      if (told.status.id === "COMPLETED") {
        const cause = told.operation && told.operation["failure-cause"];
        const words = { savepoint: "Completed: ", stop: "Stopped with savepoint ", cancel: "Canceled.", dispose: "Deleted." };
        if (cause) say(cause["stack-trace"], true);
        else say(words[action] + (told.operation && told.operation.location ? told.operation.location : ""));
        return !cause;
      }
      say("In progress for " + duration(Date.now() - began) + " …");
      await new Promise((done) => setTimeout(done, 500));
    }
  }

  const live = document.body.dataset.liveUrl;
  if (live && window.EventSource) {
    let checkpoint = null, state = null;
    const source = new EventSource(live);
    source.addEventListener("job", (event) => {
      const told = JSON.parse(event.data);
      for (const element of document.querySelectorAll("[data-live]")) {
        const value = told[element.dataset.live];
        if (value === null || value === undefined) continue;
        const text = shown[element.dataset.kind](value);
        const inner = element.querySelector(".status");
        if (inner) { if (inner.textContent !== text) { inner.textContent = text; inner.className = "status status-" + text.toLowerCase(); } } else if (element.textContent !== text) element.textContent = text;
      }
      const moved = checkpoint !== null && (told.checkpoint !== checkpoint || told.state !== state);
      checkpoint = told.checkpoint; state = told.state;
      if (moved) refresh();
      if (!["RUNNING", "RESTARTING", "CREATED"].includes(told.state)) source.close();
    });
    window.addEventListener("pagehide", () => source.close());
  }

  /* A new checkpoint: take the main part of this page anew, unless somebody is in the middle of something there. */
  async function refresh() {
    if (document.querySelector("dialog[open]") || document.querySelector("main :focus") || location.search) return;
    try {
      const answer = await fetch(location.pathname, { credentials: "same-origin" });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      const open = new Set(Array.from(document.querySelectorAll("main details[open] > summary"), (s) => s.textContent.split(":")[0]));
      for (const details of fresh.querySelectorAll("details")) if (open.has(details.querySelector("summary").textContent.split(":")[0])) details.open = true;
      document.querySelector("main").replaceChildren(...fresh.childNodes);
    } catch (error) { /* the next event tries again */ }
  }
})();
