// The page of a run that goes on: looks for news, and comes anew when the run has ended.

const WAIT_MS = 2000;

async function look() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (answer.ok) {
      const made = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = made.getElementById("live");
      if (fresh?.dataset.alive === "no") {
        location.reload();
        return;
      }
      if (fresh) show(fresh, made.getElementById("chart-data"));
    }
  } catch {
    // The server is away for the moment; what is shown stays.
  }
  setTimeout(look, WAIT_MS);
}

function show(fresh, data) {
  const place = document.getElementById("live");
  const kept = [...place.querySelectorAll("figure.chart")];
  place.replaceChildren(...fresh.childNodes);
  // Charts stay as they are and get the new numbers; new ones in their place would flicker.
  for (const chart of kept) document.getElementById(chart.id)?.replaceWith(chart);
  document.getElementById("chart-data").textContent = data.textContent;
  document.dispatchEvent(new Event("new-chart-data"));
}

setTimeout(look, WAIT_MS);
