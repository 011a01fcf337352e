// Follows Airflow's colours, refreshes the page in place, and opens Airflow's own pages around this frame.
"use strict";
const EVERY_MS = 10_000;
// The stylesheet's colours, and Airflow's for the same use: a theme of Airflow's own is followed as well.
const COLOURS = {
  back: "bg", card: "bg-muted", line: "border", text: "fg", quiet: "fg-muted", link: "fg-info",
  good: "success-fg", "good-back": "success-subtle", busy: "running-fg", "busy-back": "running-subtle",
  warning: "up_for_retry-fg", "warning-back": "up_for_retry-subtle", bad: "failed-fg", "bad-back": "failed-subtle",
  "quiet-back": "bg-emphasized",
};

function outer() {
  try {
    return window.parent !== window && window.parent.document ? window.parent : null;
  } catch {
    return null; // another origin embeds the page
  }
}

function followColours() {
  const around = outer();
  if (!around) return;
  const root = around.document.documentElement;
  const own = document.documentElement;
  const show = () => {
    own.dataset.theme = root.classList.contains("dark") ? "dark" : "light";
    const theirs = around.getComputedStyle(root);
    for (const [name, used] of Object.entries(COLOURS)) {
      const colour = theirs.getPropertyValue(`--chakra-colors-${used}`);
      if (colour) own.style.setProperty(`--${name}`, colour);
    }
  };
  show();
  new MutationObserver(show).observe(root, { attributes: true, attributeFilter: ["class"] });
}

// The frame may not navigate its surroundings; Airflow's own router can.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-airflow]");
  const around = outer();
  if (!link || !around || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  around.history.pushState(null, "", link.href);
  around.dispatchEvent(new PopStateEvent("popstate", { state: null }));
});

// A telephone begins with the overview: parts of the page are folded until they are asked for.
function fold(main) {
  if (matchMedia("(max-width: 700px)").matches) main.querySelectorAll(".part").forEach((one) => { one.open = false; });
}

function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
  target?.scrollIntoView();
}

const nameOf = (details) =>
  `${details.closest("section")?.getAttribute("aria-labelledby")}/${details.querySelector("summary").textContent}`;

async function refresh() {
  const lost = document.getElementById("lost");
  const inUse = document.activeElement && document.activeElement.closest("form");
  // A form that acts belongs to the state that was previewed, so the page stays as it was read.
  const acts = document.querySelector("form[method=post]");
  if (document.hidden || inUse || acts || String(window.getSelection())) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Map([...document.querySelectorAll("main details")].map((one) => [nameOf(one), one.open]));
    const main = fresh.querySelector("main");
    fold(main);
    main.querySelectorAll("details").forEach((one) => { one.open = open.get(nameOf(one)) ?? one.open; });
    const focused = [...document.querySelectorAll("main a, main summary")].indexOf(document.activeElement);
    const scrolled = [...document.querySelectorAll("main .wide")].map((one) => one.scrollLeft);
    document.querySelector("main").replaceWith(main);
    main.querySelectorAll(".wide").forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
    if (focused >= 0) [...main.querySelectorAll("a, summary")][focused]?.focus({ preventScroll: true });
    document.querySelector(".fresh").replaceWith(fresh.querySelector(".fresh"));
    lost.hidden = true;
  } catch (error) {
    lost.textContent = `The ledger cannot be read (${error.message}). What is shown here is old; trying again.`;
    lost.hidden = false;
  }
}

followColours();
fold(document);
reveal();
addEventListener("hashchange", reveal);
setInterval(refresh, EVERY_MS);
