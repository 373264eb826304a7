// The page of a sweep: one number of every cell against another, and who held which device when.

import { chartData, color, dragging, draw, plainText, seriesColor, shortText } from "./charts.js";

const sweep = chartData();
const onDisk = location.protocol === "file:";

function pointsOf([target, points], number) {
  return {
    type: "scatter",
    mode: "markers+text",
    name: shortText(target),
    x: points.map(([, x]) => x),
    y: points.map(([, , y]) => y),
    text: points.map(([name, , , onFront]) => (onFront ? shortText(name, 24) : "")),
    // To the right: what is on the front is the fastest, at the left end of the axis.
    textposition: ["top right", "bottom right", "middle right"][number % 3],
    customdata: points.map(([name, , , , runId, verdict]) => [shortText(name, 60), runId, plainText(verdict ?? "")]),
    marker: { size: 9, color: seriesColor(number), symbol: points.map(([, , , onFront]) => (onFront ? "circle" : "circle-open")) },
    hovertemplate: `%{customdata[0]}<br>${plainText(sweep.x)} %{x:.4~g}<br>${plainText(sweep.y)} %{y:.4~g}<br>%{customdata[2]}<extra>${plainText(target)}</extra>`,
  };
}

function frontOf([, points], number) {
  const front = points.filter(([, , , onFront]) => onFront);
  return {
    type: "scatter",
    mode: "lines",
    x: front.map(([, x]) => x),
    y: front.map(([, , y]) => y),
    line: { color: seriesColor(number), width: 1, dash: "dot", shape: "hv" },
    hoverinfo: "skip",
    showlegend: false,
  };
}

function frontChart() {
  const targets = Object.entries(sweep.points);
  const values = targets.flatMap(([, points]) => points.map(([, x]) => x)).filter((x) => x > 0);
  const isWide = values.length > 1 && Math.max(...values) / Math.min(...values) > 20;
  return {
    traces: [...targets.map(frontOf), ...targets.map(pointsOf)],
    layout: {
      height: 400,
      dragmode: dragging(),
      showlegend: true,
      legend: { orientation: "h", y: -0.18 },
      xaxis: { title: { text: plainText(sweep.x) + (isWide ? ", logarithmic" : "") }, type: isWide ? "log" : "linear", ...(isWide ? {} : endsOf(targets, 1, sweep.x_is_share)) },
      yaxis: { title: { text: plainText(sweep.y) }, ...endsOf(targets, 2, sweep.y_is_share) },
    },
  };
}

/** A share ends at 1, however much room the labels of points would like; what cannot be negative begins at 0. */
function endsOf(targets, place, isShare) {
  const values = targets.flatMap(([, points]) => points.map((point) => point[place]));
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (!values.length || least < 0) return {};
  if (!isShare || most > 1) return { range: [0, most * 1.12 || 1] };
  const room = Math.max(0.02, (1 - least) * 0.15);
  return { range: [Math.max(0, least - room), 1 + Math.min(0.02, room / 4)] };
}

function slotChart() {
  const devices = Object.keys(sweep.slots);
  const slots = devices.flatMap((device, number) => sweep.slots[device].map((slot) => [number, ...slot]));
  const begin = Math.min(...slots.map(([, , from]) => from));
  return {
    traces: [
      {
        type: "bar",
        orientation: "h",
        y: slots.map(([number]) => shortText(devices[number], 24)),
        base: slots.map(([, , from]) => (from - begin) / 1000),
        x: slots.map(([, , from, until]) => Math.max(until - from, 1) / 1000),
        customdata: slots.map(([, name, , , runId]) => [shortText(name, 60), runId]),
        marker: {
          color: slots.map(([number, , , , , status]) => (status === "FAILED" ? color("bad") : seriesColor(number))),
          line: { color: color("ground"), width: 1 },
        },
        hovertemplate: "%{customdata[0]}<br>from %{base:.2f} s, %{x:.2f} s<extra></extra>",
      },
    ],
    layout: {
      height: 70 + 34 * devices.length,
      dragmode: dragging(),
      barmode: "overlay",
      xaxis: { title: { text: "seconds since the first" } },
      yaxis: { autorange: "reversed", type: "category" },
      margin: { t: 8, r: 8, b: 40, l: 56 },
    },
  };
}

function openRun(element) {
  if (onDisk) return;
  element.on("plotly_click", (event) => {
    const runId = event.points[0].customdata?.[1];
    if (runId) location.href = new URL(`../runs/${encodeURIComponent(runId)}`, location.href).href;
  });
}

draw("chart-front", frontChart, openRun);
draw("chart-slots", slotChart, openRun);
