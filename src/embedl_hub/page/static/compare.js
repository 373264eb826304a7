// The page of a comparison: the layers of all runs over each other, and the spread of their samples.

import { chartData, dragging, draw, plainText, seriesColor, shortText } from "./charts.js";
import { bringLayerTableToLife, showLayer } from "./layers.js";

const compared = chartData();

function overlaidLayers() {
  return {
    traces: compared.runs.map((run, number) => ({
      type: "bar",
      name: shortText(run),
      x: compared.layers.map((_, index) => index + 1),
      y: compared.layers.map(([, times]) => times[number]),
      customdata: compared.layers.map(([name]) => shortText(name, 80)),
      marker: { color: seriesColor(number) },
      hovertemplate: `%{customdata}<br>%{y:.4~g} ms<extra>${plainText(run)}</extra>`,
    })),
    layout: { height: 300, dragmode: dragging(), barmode: "group", showlegend: true, legend: { orientation: "h", y: -0.15 }, yaxis: { title: { text: "ms" } }, xaxis: { tickformat: "d" } },
  };
}

function sampleBoxes() {
  return {
    traces: compared.runs.map((run, number) => ({
      type: "box",
      name: shortText(run),
      x: compared.samples_ms[number],
      marker: { color: seriesColor(number), size: 3 },
      line: { width: 1 },
      boxpoints: "outliers",
      hoverinfo: "x",
    })),
    layout: { height: 60 + 50 * compared.runs.length, xaxis: { title: { text: "ms" } }, yaxis: { autorange: "reversed" } },
  };
}

if (compared.layers.length) {
  draw("chart-layers", overlaidLayers, (element) => {
    element.on("plotly_click", (event) => showLayer(event.points[0].pointNumber));
  });
}
draw("chart-samples", sampleBoxes);
bringLayerTableToLife();
