// The page of a device: the latency of each model over time; a click opens the run.

import { chartData, draw, seriesColor, shortText } from "./charts.js";

const { models } = chartData();

function history() {
  return {
    traces: Object.entries(models).map(([model, points], number) => ({
      type: "scatter",
      mode: "lines+markers",
      name: shortText(model),
      x: points.map((point) => new Date(point.started_ms)),
      y: points.map((point) => point.latency_ms),
      customdata: points.map((point) => point.run_id),
      line: { color: seriesColor(number), width: 1.5 },
      error_y: {
        type: "data", symmetric: false, width: 3, thickness: 1, color: seriesColor(number),
        array: points.map((point) => (point.high === null ? 0 : Math.max(0, point.high - point.latency_ms))),
        arrayminus: points.map((point) => (point.low === null ? 0 : Math.max(0, point.latency_ms - point.low))),
      },
      marker: {
        size: points.map((point) => (point.change ? 11 : 6)),
        symbol: points.map((point) => ({ faster: "triangle-down", slower: "triangle-up" })[point.change] ?? (point.is_doubtful ? "circle-open" : "circle")),
      },
      text: points.map((point) => (point.change ? `<br>${point.change} than before` : "")),
      hovertemplate: "%{y:.4~g} ms<br>%{x|%Y-%m-%d %H:%M}%{text}<extra></extra>",
    })),
    layout: { height: 300, showlegend: true, legend: { orientation: "h", y: -0.2 }, yaxis: { title: { text: "ms" }, rangemode: "tozero" } },
  };
}

draw("chart-history", history, (element) => {
  element.on("plotly_click", (event) => {
    location.href = new URL(`runs/${encodeURIComponent(event.points[0].customdata)}`, location.href).href;
  });
});
