// The run table: pickers that apply at once, ticks that stay while rows change, and rows that keep themselves new.

const WAIT_MS = 2000;
const table = document.getElementById("runs");
const filters = document.getElementById("filters");
const button = document.getElementById("compare-button");
const ticked = new Set();
let tag = null;

filters.addEventListener("change", (event) => {
  if (event.target instanceof HTMLSelectElement) filters.requestSubmit();
});
filters.addEventListener("submit", () => {
  // An address without empty words is one that can be read.
  for (const field of filters.elements) {
    if (field.name && !field.value) field.disabled = true;
  }
  // Columns that nobody changed are the usual ones, and stay so when the usual ones change.
  const boxes = [...filters.querySelectorAll("input[name=column]")];
  const kept = new URLSearchParams(location.search).has("column");
  if (!kept && boxes.every((box) => box.checked === box.defaultChecked)) boxes.forEach((box) => (box.disabled = true));
});
// A page that comes back from the browser's memory must not come back with half a form.
addEventListener("pageshow", () => [...filters.elements].forEach((field) => (field.disabled = false)));

table.addEventListener("change", (event) => {
  if (event.target.name !== "run") return;
  if (event.target.checked) ticked.add(event.target.value);
  else ticked.delete(event.target.value);
  showTicks();
});

function showTicks() {
  for (const box of table.querySelectorAll("input[name=run]")) {
    box.checked = ticked.has(box.value);
    box.closest("tr").classList.toggle("ticked", box.checked);
  }
  const count = table.querySelectorAll("input[name=run]:checked").length;
  button.disabled = count < 2 || count > 6;
  button.textContent = count > 1 ? `Compare the ${count} ticked runs` : "Compare the ticked runs";
}

async function refresh() {
  if (document.hidden) return;
  const answer = await fetch(table.dataset.address, { headers: { Accept: "text/html", ...(tag ? { "If-None-Match": tag } : {}) }, cache: "no-store" });
  if (answer.status !== 200) return;
  tag = answer.headers.get("ETag");
  const made = new DOMParser().parseFromString(`<table><tbody>${await answer.text()}</tbody></table>`, "text/html");
  const focused = document.activeElement?.closest("tr[data-run]")?.dataset.run;
  const part = document.activeElement?.matches("input") ? "input" : "a";
  table.tBodies[0].replaceChildren(...made.querySelector("tbody").children);
  if (focused) table.querySelector(`tr[data-run="${CSS.escape(focused)}"] ${part}`)?.focus({ preventScroll: true });
  showTicks();
}

async function showCount() {
  const place = document.getElementById("count");
  const answer = await fetch(place.dataset.address, { headers: { Accept: "application/json" } });
  if (!answer.ok) return;
  const { count } = await answer.json();
  place.textContent = count === 1 ? "1 run" : `${count.toLocaleString("en")} runs`;
}

async function keepFresh() {
  try {
    await refresh();
  } catch {
    // The server is away for the moment; what is shown stays.
  }
  setTimeout(keepFresh, WAIT_MS);
}

// On a phone the runs come first; what narrows them is behind one touch.
if (matchMedia("(max-width: 40rem)").matches) document.querySelector("details.narrow").open = false;
showTicks();
// Without an address the filter was not understood, and there is nothing to keep fresh.
if (table.dataset.address) {
  showCount();
  setTimeout(keepFresh, WAIT_MS);
}
