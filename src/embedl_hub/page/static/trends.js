// A number over time: one line for each model, device and precision; a click opens the run.

import { chartData, dragging, draw, plainText, seriesColor, shortText } from "./charts.js";

const { axis, unit, lines } = chartData();
const filters = document.getElementById("filters");
const onDisk = location.protocol === "file:";

function lineOf({ title, dots }, number) {
  const stroke = seriesColor(number);
  return {
    type: "scatter",
    mode: "lines+markers",
    name: shortText(title, 60),
    x: dots.map(([, started]) => new Date(started)),
    y: dots.map(([, , value]) => value),
    customdata: dots.map(([runId, , , low, high, isDoubtful, change]) => [
      runId,
      low === null ? "" : `<br>95 % interval ${told(low)} to ${told(high)}`,
      (change ? `<br>${plainText(change)} from here on` : "") + (isDoubtful ? "<br>not stable" : ""),
    ]),
    line: { color: stroke, width: 1.5, dash: ["solid", "dash"][Math.floor(number / 6) % 2] },
    error_y: {
      type: "data", symmetric: false, width: 3, thickness: 1, color: stroke,
      array: dots.map(([, , value, , high]) => (high === null ? null : high - value)),
      arrayminus: dots.map(([, , value, low]) => (low === null ? null : value - low)),
    },
    marker: {
      color: stroke,
      size: dots.map(([, , , , , , , side]) => (side ? 13 : 6)),
      symbol: dots.map(([, , , , , isDoubtful, , side]) => (side ? (side > 0 ? "triangle-up" : "triangle-down") : isDoubtful ? "circle-open" : "circle")),
    },
    hovertemplate: `%{y:.4~g} ${plainText(unit)}%{customdata[1]}%{customdata[2]}<br>%{x|%Y-%m-%d %H:%M}<extra>${shortText(title, 60)}</extra>`,
  };
}

function told(value) {
  return Number(value.toPrecision(4)).toString();
}

function trends() {
  return {
    traces: lines.map(lineOf),
    layout: {
      height: 380 + 20 * lines.length,
      dragmode: dragging(),
      showlegend: true,
      legend: { orientation: "h", y: -0.12, yanchor: "top" },
      xaxis: { title: { text: "" }, type: "date" },
      yaxis: { title: { text: plainText(axis.title) }, type: axis.log ? "log" : "linear", ...(axis.ends ? { range: axis.ends } : {}) },
    },
  };
}

draw("chart-trends", trends, (element) => {
  if (onDisk) return;
  element.on("plotly_click", (event) => {
    location.href = new URL(`runs/${encodeURIComponent(event.points[0].customdata[0])}`, location.href).href;
  });
});

if (filters) {
  filters.addEventListener("change", (event) => {
    if (event.target instanceof HTMLSelectElement) filters.requestSubmit();
  });
  // An address without empty words is one that can be read.
  filters.addEventListener("submit", () => [...filters.elements].forEach((field) => (field.disabled = field.name && !field.value)));
  addEventListener("pageshow", () => [...filters.elements].forEach((field) => (field.disabled = false)));
  // On a phone the chart comes first; what narrows it is behind one touch.
  if (matchMedia("(max-width: 40rem)").matches) filters.querySelector("details.narrow").open = false;
}
