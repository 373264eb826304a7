// The page of a run: its charts, and the layer table they lead to.

import { chartData, color, dragging, draw, plainText, seriesColor, shortText } from "./charts.js";
import { bringLayerTableToLife, showLayer } from "./layers.js";

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
    layout: { height: 280, dragmode: dragging(), bargap: data.layers.length > 80 ? 0.1 : 0.25, yaxis: { title: { text: "ms" } }, xaxis: { tickformat: "d" } },
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
    layout: { height: Math.max(120, 40 + 22 * shown.length), margin: { t: 4, r: 8, b: 30, l: 8 }, yaxis: { autorange: "reversed" } },
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
  if (data.samples_ms?.length) draw("chart-samples", sampleChart);
  if (Object.keys(data.series).length) draw("chart-series", seriesChart);
}

drawAll();
bringLayerTableToLife();
document.addEventListener("new-chart-data", () => {
  data = chartData();
  drawAll();
});
