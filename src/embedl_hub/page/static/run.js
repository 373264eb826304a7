// The page of a run: its charts, and the layer table they lead to.

import { chartData, color, dragging, draw, plainText, seriesColor, shortText } from "./charts.js";
import { bringLayerTableToLife, linkRows, showLayer } from "./layers.js";
import { openGraph } from "./graph.js";

let data = chartData();

function opColors() {
  const colors = new Map();
  for (const group of data.by_op_type) colors.set(group.name, colors.size < 5 ? seriesColor(colors.size) : color("series-6"));
  return (op) => colors.get(op || "not told");
}

function layerChart() {
  const colorOf = opColors();
  return {
    traces: [{
      type: "bar",
      x: data.layers.map((_, number) => number + 1),
      y: data.layers.map(([, , , time]) => time),
      customdata: data.layers.map(([name, op, unit]) => [plainText(name), plainText(op), plainText(unit)]),
      marker: { color: data.layers.map(([, op]) => colorOf(op)) },
      hovertemplate: "%{customdata[0]}<br>%{y:.4~g} ms<br>%{customdata[1]} on %{customdata[2]}<extra></extra>",
    }],
    layout: { height: 300, dragmode: dragging(), bargap: data.layers.length > 80 ? 0.1 : 0.25, yaxis: { title: { text: "ms" } }, xaxis: { tickformat: "d" } },
  };
}

function groupChart(groups, valueOf, template) {
  const shown = groups.slice(0, 12);
  return {
    traces: [{
      type: "bar",
      orientation: "h",
      x: shown.map(valueOf),
      y: shown.map((group) => shortText(group.name, 24)),
      customdata: shown.map((group) => plainText(group.name)),
      marker: { color: shown.map((group) => opColors()(group.name)) },
      hovertemplate: template,
    }],
    layout: { height: 40 + 22 * 4 * Math.ceil(shown.length / 4), margin: { t: 4, r: 8, b: 30, l: 8 }, yaxis: { autorange: "reversed" } },
  };
}

function sampleChart() {
  return {
    traces: [{
      type: "scatter",
      mode: data.samples_ms.length > 400 ? "lines" : "lines+markers",
      x: data.samples_ms.map((_, number) => number + 1),
      y: data.samples_ms,
      line: { color: seriesColor(0), width: 1 },
      marker: { size: 4 },
      hovertemplate: "sample %{x}: %{y:.4~g} ms<extra></extra>",
    }],
    layout: { height: 200, yaxis: { title: { text: "ms" } } },
  };
}

/** One picture for all that happened over the load: panels above each other, one time below them. */
function sustainedChart() {
  const { panels, throttled_s, onset_s, fresh_s, steady_s } = data.sustained;
  const gap = 0.06;
  const height = (1 - gap * (panels.length - 1)) / panels.length;
  const axis = { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), automargin: true };
  const layout = { height: 60 + 150 * panels.length, hovermode: "x", dragmode: dragging(), shapes: [], showlegend: true,
    legend: { orientation: "h", y: -0.08 }, xaxis: { ticksuffix: " s", anchor: "free", position: 0 } };
  const traces = panels.flatMap((panel, place) => {
    const end = 1 - place * (height + gap);
    const name = place ? `y${place + 1}` : "y";
    layout[place ? `yaxis${place + 1}` : "yaxis"] = { ...axis, domain: [Math.max(0, end - height), end], rangemode: "tozero",
      title: { text: `${panel.title}, ${panel.unit}` } };
    return panel.lines.map((line, number) => ({
      type: "scatter", mode: "lines", x: line.x, y: line.y, yaxis: name, name: shortText(line.name, 32),
      line: { color: seriesColor(number), width: 1.5 },
      hovertemplate: `${shortText(line.name, 32)}: %{y:.4~g} ${panel.unit}<extra></extra>`,
    }));
  });
  const band = (range, fill) => ({ type: "rect", yref: "paper", y0: 0, y1: 1, x0: range[0], x1: range[1], fillcolor: fill, opacity: 0.12, line: { width: 0 }, layer: "below" });
  if (fresh_s) layout.shapes.push(band(fresh_s, color("good")));
  if (steady_s) layout.shapes.push(band(steady_s, color("busy")));
  for (const at of throttled_s) {
    layout.shapes.push({ type: "line", yref: "paper", x0: at, x1: at, y0: 0, y1: 0.025, line: { color: color("bad"), width: 1.5 } });
  }
  if (onset_s) {
    const at = (onset_s[0] + onset_s[1]) / 2;
    layout.shapes.push({ type: "line", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: color("bad"), width: 2, dash: "dash" } });
    layout.annotations = [{ x: at, y: 1, yref: "paper", xanchor: "left", yanchor: "top", showarrow: false, text: ` throttled from ${at.toFixed(1)} s on`, font: { color: color("bad") } }];
  }
  return { traces, layout };
}

function seriesChart() {
  return {
    traces: Object.entries(data.series).map(([name, points], number) => ({
      type: "scatter",
      mode: "lines+markers",
      name: shortText(name),
      x: points.map(([step], index) => step ?? index),
      y: points.map(([, value]) => Number(value)),
      line: { color: seriesColor(number), width: 1.5 },
      marker: { size: 4 },
    })),
    layout: { height: 220, showlegend: true, legend: { orientation: "h", y: -0.2 } },
  };
}

function drawAll() {
  if (data.layers?.length) {
    draw("chart-layers", layerChart, (element) => {
      element.on("plotly_click", (event) => showLayer(event.points[0].pointNumber));
    });
    draw("chart-op-time", () => groupChart(data.by_op_type, (group) => group.time_ms, "%{customdata}: %{x:.4~g} ms<extra></extra>"));
    const byCount = [...data.by_op_type].sort((one, two) => two.count - one.count);
    draw("chart-op-count", () => groupChart(byCount, (group) => group.count, "%{customdata}: %{x}<extra></extra>"));
  }
  if (data.sustained?.panels.length) draw("chart-sustained", sustainedChart);
  if (data.samples_ms?.length) draw("chart-samples", sampleChart);
  if (Object.keys(data.series).length) draw("chart-series", seriesChart);
}

/** Draw the graph when it comes into view: it may be large, and is not what everybody came for. */
function bringGraph(section) {
  const inside = document.getElementById("graph-data");
  const start = (found) => {
    const graph = openGraph(section, found, { follow: (layer) => showLayer(layer - 1) });
    linkRows(graph.layers, graph.showLayer);
  };
  if (inside) {
    start(JSON.parse(inside.textContent));
    return;
  }
  const watcher = new IntersectionObserver(async (entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    const answer = await fetch(section.dataset.address, { headers: { Accept: "application/json" } });
    const found = await answer.json();
    if (answer.ok) start(found);
    else section.querySelector(".graph-panel").textContent = found.error;
  }, { rootMargin: "300px" });
  watcher.observe(section);
}

drawAll();
bringLayerTableToLife();
if (document.getElementById("graph")) bringGraph(document.getElementById("graph"));
document.addEventListener("new-chart-data", () => {
  data = chartData();
  drawAll();
});
