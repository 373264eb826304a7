// The layer table: searching, sorting by a heading, and showing the row that belongs to a bar.

/** Make the tables of layers and modules alive, if the page has them. */
export function bringLayerTableToLife() {
  const modules = document.getElementById("modules");
  if (modules) makeSortable(modules);
  const table = document.getElementById("layers");
  if (!table) return;
  makeSearchable(table);
  makeSortable(table);
}

/** Highlight the row of a layer, counted from 0, and bring it into view. */
export function showLayer(number) {
  const row = document.getElementById(`layer-${number + 1}`);
  if (!row) return;
  document.querySelectorAll("#layers tr.chosen").forEach((other) => other.classList.remove("chosen"));
  row.hidden = false;
  row.classList.add("chosen");
  row.scrollIntoView({ block: "center", behavior: "instant" });
  row.focus({ preventScroll: true });
}

/** Let the numbers of layers, counted from 1, lead to their nodes in the graph. */
export function linkRows(layers, act) {
  for (const layer of layers) {
    const cell = document.getElementById(`layer-${layer}`)?.cells[0];
    if (!cell) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.title = "Show it in the graph";
    button.textContent = cell.textContent;
    button.addEventListener("click", () => act(layer));
    cell.dataset.value = cell.textContent;
    cell.replaceChildren(button);
  }
}

function makeSearchable(table) {
  const input = document.getElementById("layer-search");
  const said = document.getElementById("layer-count");
  const rows = [...table.tBodies[0].rows];
  input.closest(".tools").hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    said.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
}

function makeSortable(table) {
  for (const heading of table.tHead.rows[0].cells) {
    if (heading.classList.contains("unsorted")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, heading));
  }
}

function sortBy(table, heading) {
  const isNumber = heading.classList.contains("num");
  const before = heading.getAttribute("aria-sort");
  // Numbers start with the largest: what costs most is what one looks for.
  const first = isNumber && heading.cellIndex > 0 ? "descending" : "ascending";
  const other = first === "descending" ? "ascending" : "descending";
  const direction = before === first ? other : first;
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row.cells[heading.cellIndex], isNumber), row]);
  rows.sort(([one], [two]) => order(one, two, sign));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function keyOf(cell, isNumber) {
  if (!isNumber) return cell.textContent.trim();
  const text = cell.dataset.value ?? cell.textContent;
  return text === "" ? null : Number(text);
}

function order(one, two, sign) {
  // What is not known comes last in either direction.
  if (one === null || two === null) return (one === null) - (two === null);
  return sign * (typeof one === "number" ? one - two : one.localeCompare(two));
}
