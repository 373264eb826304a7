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
      marker: { size: 6, symbol: points.map((point) => (point.is_doubtful ? "circle-open" : "circle")) },
      hovertemplate: "%{y:.4~g} ms<br>%{x|%Y-%m-%d %H:%M}<extra></extra>",
    })),
    layout: { height: 300, showlegend: true, legend: { orientation: "h", y: -0.2 }, yaxis: { title: { text: "ms" }, rangemode: "tozero" } },
  };
}

draw("chart-history", history, (element) => {
  element.on("plotly_click", (event) => {
    location.href = new URL(`runs/${encodeURIComponent(event.points[0].customdata)}`, location.href).href;
  });
});
