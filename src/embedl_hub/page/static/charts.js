// What all charts share: colors from the style sheet, names as text, and redrawing when the colors change.

const drawn = new Map();

/** Return the data that the page was made with. */
export function chartData() {
  return JSON.parse(document.getElementById("chart-data").textContent);
}

// Only line breaks of the library's own HTML are used: bold and the like would be style attributes, which the page's
// policy refuses.

/** Return a name as the chart library shows it letter by letter: it reads some HTML, and names are not HTML. */
export function plainText(name) {
  return String(name).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Return a name short enough for an axis or a legend. */
export function shortText(name, most = 48) {
  const text = String(name);
  return plainText(text.length <= most ? text : "…" + text.slice(1 - most));
}

/** Return a color of the style sheet. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Return the color of the run or group with a number, from 0. */
export function seriesColor(number) {
  return color(`series-${(number % 6) + 1}`);
}

/**
 * Draw a chart into the element with an id, if the page has it; again when light turns to dark.
 * `make` returns {traces, layout}; `ready` gets the element once, to listen on it.
 */
export function draw(id, make, ready = () => {}) {
  const element = document.getElementById(id);
  if (!element || !globalThis.Plotly) return;
  const render = () => {
    const { traces, layout } = make();
    return Plotly.react(element, traces, withHouseStyle(layout), { displayModeBar: false, responsive: true });
  };
  drawn.set(id, render);
  render().then(() => ready(element));
}

/** What dragging does: a mouse zooms into many bars (a double click goes back), a finger scrolls the page. */
export function dragging() {
  return matchMedia("(pointer: fine)").matches ? "zoom" : false;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((render) => render()));

function withHouseStyle(layout) {
  const axis = { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: color("soft"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: color("ground"), bordercolor: color("line"), font: { color: color("ink"), size: 12 }, align: "left" },
    margin: { t: 8, r: 8, b: 28, l: 56 },
    hovermode: "closest",
    dragmode: false,
    showlegend: false,
    ...layout,
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
  };
}
