(() => {
  const found = [];
  const visible = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden" && (!e.closest("details:not([open])") || Boolean(e.closest("summary")));
  const name = (e) => (e.getAttribute("aria-label") || e.textContent || e.getAttribute("alt") || "").trim();
  if (!document.documentElement.lang) found.push("the page has no language");
  if (document.querySelectorAll("h1").length !== 1) found.push("there is not one h1");
  if (document.querySelectorAll("main").length !== 1) found.push("there is not one main");
  if (!document.title) found.push("the page has no title");
  let level = 0;
  for (const h of document.querySelectorAll("h1, main h2, main h3, main h4")) {
    if (!visible(h)) continue;
    const now = Number(h.tagName[1]);
    if (now > level + 1) found.push("heading jumps to " + h.tagName + " " + h.textContent);
    level = now;
  }
  for (const e of document.querySelectorAll("a, button, summary")) if (visible(e) && !name(e)) found.push("no name: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("img")) if (!e.hasAttribute("alt")) found.push("no alt: " + e.src);
  for (const e of document.querySelectorAll("input, select, textarea")) if (visible(e) && !e.closest("label") && !e.getAttribute("aria-label")) found.push("no label: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("svg")) if (visible(e) && !e.closest("a") && !e.getAttribute("role") && !e.closest("[aria-label]")) found.push("svg without a role");
  for (const e of document.querySelectorAll("main *")) if (e.scrollWidth > e.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(e).overflowX) && e.tabIndex < 0) found.push("cannot be scrolled by keyboard: " + e.className);
  const ids = Array.from(document.querySelectorAll("[id]"), (e) => e.id);
  if (new Set(ids).size !== ids.length) found.push("an id twice");
  const numbers = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const back = (e) => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg") || !visible(e) || !Array.from(e.childNodes).some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (e.closest(".skip") || e.disabled || getComputedStyle(e).display === "none" || e.tagName === "OPTION") continue;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push("contrast " + ratio.toFixed(2) + ": " + e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 30));
  }
  // Text in pictures: against the box that it stands in, else against what lies under the picture.
  for (const e of document.querySelectorAll("svg text")) {
    if (!visible(e)) continue;
    const box = e.parentElement.querySelector("rect.node");
    const under = box ? numbers(getComputedStyle(box).fill) : back(e.closest("svg"));
    const [a, b] = [light(numbers(getComputedStyle(e).fill)), light(under)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push("contrast in a picture: " + e.textContent.slice(0, 30));
  }
  // Landmarks: one banner, one footer, named navigation, and nothing to read outside of them.
  for (const tag of ["body > header", "body > footer"]) if (document.querySelectorAll(tag).length !== 1) found.push("there is not one " + tag);
  for (const e of document.querySelectorAll("nav, [role=region], section[aria-label]")) if (e.tagName !== "SECTION" && !e.getAttribute("aria-label")) found.push("a landmark without a name: " + e.outerHTML.slice(0, 80));
  for (const e of document.body.children) if (!["HEADER", "NAV", "MAIN", "FOOTER", "DIALOG", "SCRIPT"].includes(e.tagName) && !e.classList.contains("skip") && e.textContent.trim()) found.push("outside of all landmarks: " + e.tagName);
  const skip = document.querySelector("a.skip");
  if (!skip || !document.querySelector(skip.getAttribute("href"))) found.push("no way past the navigation");
  // Tables: a header for every column, with a name, and as many cells as headers.
  for (const t of document.querySelectorAll("table")) {
    const heads = Array.from(t.querySelectorAll("thead th"));
    if (!heads.length) found.push("a table without headers");
    for (const h of heads) if (!h.textContent.trim()) found.push("a header without a name in " + t.closest("[aria-label]")?.getAttribute("aria-label"));
    for (const row of t.querySelectorAll("tbody tr")) {
      const cells = Array.from(row.children).reduce((sum, c) => sum + c.colSpan, 0);
      if (cells !== t.querySelectorAll("thead tr:first-child > *").length) found.push("a row with " + cells + " cells: " + row.textContent.trim().slice(0, 40));
    }
    if (!t.closest("[aria-label]")) found.push("a table without a name");
  }
  // Live regions: what changes by itself and matters is told; every dialog has a name and tells its outcome.
  if (document.body.dataset.liveUrl && !document.querySelector("header [role=status]")) found.push("a change of the job's state is not told");
  for (const d of document.querySelectorAll("dialog")) {
    if (!document.getElementById(d.getAttribute("aria-labelledby"))) found.push("a dialog without a name");
    if (!d.querySelector("[role=status]")) found.push("a dialog that does not tell its outcome");
  }
  // The keyboard: focus is seen wherever it goes, and what can be pressed is large enough to be hit.
  const before = document.activeElement;
  for (const e of document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")) {
    if (!visible(e) || e.disabled || e.closest("dialog:not([open])")) continue;
    e.focus();
    if (document.activeElement !== e) { found.push("cannot be focused: " + e.outerHTML.slice(0, 80)); continue; }
    const style = getComputedStyle(e), node = e.querySelector("rect.node");
    const marked = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2) || (node && parseFloat(getComputedStyle(node).strokeWidth) >= 3);
    if (!marked) found.push("focus cannot be seen: " + e.outerHTML.slice(0, 80));
    const area = e.getBoundingClientRect();
    if (e.tagName === "BUTTON" && (area.width < 24 || area.height < 24)) found.push("too small to be hit: " + e.outerHTML.slice(0, 80));
  }
  if (before && before.focus) before.focus(); else document.activeElement.blur();
  for (const e of document.querySelectorAll("*")) if (e.scrollLeft) e.scrollLeft = 0;
  window.scrollTo(0, 0);
  return found;
})()
