(() => {
  const found = [];
  const visible = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden";
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
  return found;
})()
