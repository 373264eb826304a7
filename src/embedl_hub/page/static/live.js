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
      if (fresh) document.getElementById("live").replaceChildren(...fresh.childNodes);
    }
  } catch {
    // The server is away for the moment; what is shown stays.
  }
  setTimeout(look, WAIT_MS);
}

setTimeout(look, WAIT_MS);
