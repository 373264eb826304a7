"""The page in a real browser: opened, filtered, sorted, clicked, compared, exported, attacked, and used by keyboard."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import axe_playwright_python
import pytest
from playwright.sync_api import expect, sync_playwright
from support import recorded
from support.debian import require
from support.recorded import Recorded
from support.sampled import sampled
from support.served_page import served

from embedl_graph import ModelGraph, Node, graph_html
from embedl_graph import shown as shown_graph
from embedl_hub import page
from embedl_hub.tracking import Client, RunType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page


# A busy machine may take its time; how soon a page is there is measured elsewhere.
expect.set_options(timeout=60_000)
_LIMIT_MS = 120_000

_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = require("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(shown: Recorded) -> Iterator[str]:
    with served(shown.store) as address:
        yield address


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab of its own that must not complain about anything."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.set_default_timeout(_LIMIT_MS)
    complaints: list[str] = []
    tab.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(dialog.message))
    yield tab
    # A page that answers 400 on purpose is told to the console by the browser itself.
    assert [text for text in complaints if "status of 40" not in text] == []
    context.close()


def drawn(tab: Page, chart: str) -> None:
    expect(tab.locator(f"#{chart} .main-svg").first).to_be_visible()


def leave(tab: Page) -> None:
    """Leave a page before its server ends: it asks for news until then, and would complain of no answer."""
    tab.goto("about:blank")


def test_every_page_opens_without_a_complaint(tab: Page, site: str, shown: Recorded) -> None:
    """And nothing comes from anywhere else."""
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    compared = f"/compare?run={shown.ids['slow']}&run={shown.ids['fast']}"
    for address in ("/", "/projects", "/runs", "/devices", "/device?name=pi", compared, "/sweeps", "/charts",
                    f"/sweeps/{shown.sweeps['sweep']}",
                    *(f"/runs/{run_id}" for run_id in shown.ids.values())):  # fmt: skip
        tab.goto(site + address)
        expect(tab.locator("h1")).to_be_visible()
        tab.wait_for_load_state("networkidle")
    assert all(url.startswith(site) for url in asked)


@pytest.mark.parametrize("name", ["fast", "train", "compile"])
def test_nothing_moves_when_the_charts_come(tab: Page, shown: Recorded, name: str) -> None:
    """A button that moves between the press and the release of the mouse is not clicked."""
    top = "document.querySelector('.changes').getBoundingClientRect().top + scrollY"
    with served(shown.store, read_only=False) as site:
        tab.route("**/static/*.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
        tab.goto(f"{site}/runs/{shown.ids[name]}")
        bare = tab.evaluate(top)
        tab.unroute_all()
        tab.reload()
        tab.wait_for_load_state("networkidle")
        assert tab.evaluate(top) == pytest.approx(bare, abs=4)  # pixels; a button has 30
        leave(tab)


def test_a_profile_shows_what_matters(tab: Page, site: str, shown: Recorded) -> None:
    """Headline numbers, verdict, charts; hovering tells a layer, a click leads to its row."""
    tab.goto(f"{site}/runs/{shown.ids['fast']}")
    headline = tab.locator(".headline")
    expect(headline.locator("h2")).to_have_text(["Median latency", "Mean latency", "Peak memory", "Top compute unit"])
    expect(headline).to_contain_text("Peak memory42.50 MB")
    expect(headline).to_contain_text("CPU 100.0 %")
    expect(tab.locator(".label.verdict-stable").first).to_have_text("stable")
    for chart in ("chart-layers", "chart-op-time", "chart-op-count", "chart-samples"):
        drawn(tab, chart)
    bars = tab.locator("#chart-layers .bars .point path")
    layers = recorded.EXAMPLE["layers"]["rows"]
    expect(bars).to_have_count(len(layers))
    number = max(range(len(layers)), key=lambda index: layers[index]["time_ms"])
    bars.nth(number).hover(force=True)
    expect(tab.locator("#chart-layers .hoverlayer")).to_contain_text(layers[number]["name"])
    expect(tab.locator("#chart-layers .hoverlayer")).to_contain_text("ms")
    box = bars.nth(number).bounding_box()
    assert box is not None
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    chosen = tab.locator("#layers tr.chosen")
    expect(chosen).to_have_id(f"layer-{number + 1}")
    expect(chosen).to_be_in_viewport()
    expect(chosen).to_be_focused()


def test_the_layer_table_is_searched_and_sorted(tab: Page, site: str, shown: Recorded) -> None:
    tab.goto(f"{site}/runs/{shown.ids['fast']}")
    rows = tab.locator("#layers tbody tr:visible")
    everything = len(recorded.EXAMPLE["layers"]["rows"])
    expect(rows).to_have_count(everything)
    tab.fill("#layer-search", "conv cpu")
    expect(rows).to_have_count(2)
    expect(tab.locator("#layer-count")).to_have_text(f"2 of {everything}")
    tab.fill("#layer-search", "")
    tab.get_by_role("button", name="ms", exact=True).click()
    times = [float(text) for text in tab.locator("#layers tbody tr td:nth-child(5)").all_inner_texts()]
    assert times == sorted(times, reverse=True)
    expect(tab.locator("#layers th[aria-sort]")).to_have_text("ms")


def test_runs_are_filtered_sorted_and_given_columns(tab: Page, site: str) -> None:
    """By typing, picking, clicking headings and ticking; the address keeps it all."""
    tab.goto(f"{site}/runs?project=vision")
    expect(tab.locator("#count")).to_have_text("5 runs")
    tab.fill("input[name=q]", "metrics.latency > 0")
    tab.press("input[name=q]", "Enter")
    names = tab.locator("#runs tbody th")
    expect(names).to_have_text(["fast", "slow"])
    assert "project=vision" in tab.url
    tab.get_by_role("link", name="Median, ms").click()
    expect(tab.locator("#runs th[aria-sort=ascending]")).to_contain_text("Median, ms")
    expect(names).to_have_text(["fast", "slow"])
    tab.get_by_role("link", name="Median, ms").click()
    expect(names).to_have_text(["slow", "fast"])
    tab.get_by_text("Columns", exact=True).click()
    tab.get_by_role("checkbox", name="threads").check()
    tab.get_by_role("button", name="Show these columns").click()
    expect(tab.get_by_role("columnheader", name="threads")).to_be_visible()
    assert "column=params.threads" in tab.url
    assert "sort=-metrics.latency_median" in tab.url
    tab.goto(f"{site}/runs")
    tab.select_option("select[name=status]", "FAILED")
    expect(tab.locator("#runs tbody tr").last).to_contain_text("invoke")
    expect(tab).to_have_url(f"{site}/runs?status=FAILED&sort=-started")
    tab.fill("input[name=q]", "metrics.latency <")
    tab.press("input[name=q]", "Enter")
    expect(tab.get_by_role("alert")).to_contain_text("a value is expected")
    expect(tab.locator("input[name=q]")).to_have_value("metrics.latency <")


def test_ticked_runs_are_compared(tab: Page, site: str, shown: Recorded) -> None:
    """Differences first, then ratios with their interval, then the layers over each other."""
    tab.goto(f"{site}/runs?project=vision")
    button = tab.locator("#compare-button")
    expect(button).to_be_disabled()
    for name in ("slow", "fast"):
        tab.locator(f"tr[data-run='{shown.ids[name]}'] input").check()
    button.click()
    expect(tab.locator("h1")).to_have_text("Comparison of 2 runs")
    headings = tab.locator("h2").all_inner_texts()
    assert headings[:3] == ["What differs", "Numbers, and their ratios to A", "Layers"]
    row = tab.locator("tr", has=tab.get_by_role("rowheader", name="latency_median ms"))
    expect(row).to_contain_text("× 3.000")
    expect(row).to_contain_text("slower")
    drawn(tab, "chart-layers")
    expect(tab.locator("#chart-layers .bars")).to_have_count(2)
    drawn(tab, "chart-samples")
    tab.locator("#chart-layers .bars").first.locator(".point path").first.click(force=True)
    expect(tab.locator("#layers tr.chosen")).to_have_count(1)


def test_new_runs_appear_by_themselves(tab: Page, own: Recorded) -> None:
    """While ticks and focus stay; and a run that goes on shows its end."""
    with served(own.store) as site:
        tab.goto(f"{site}/runs")
        box = tab.locator(f"tr[data-run='{own.ids['train']}'] input")
        box.check()
        box.focus()
        client = Client("vision", own.store)
        with client.start_run(RunType.CUSTOM, "newcomer") as run:
            expect(tab.locator("#runs tbody tr").first).to_contain_text("newcomer", timeout=15_000)
            expect(tab.locator("#runs tbody tr").first).to_contain_text("running")
            expect(box).to_be_checked()
            expect(box).to_be_focused()
            tab.get_by_role("link", name="newcomer").click()
            expect(tab.locator(".title")).to_contain_text("running")
            run.log_metric("loss", 0.25, 0)
            run.log_metric("loss", 0.125, 1)
            expect(tab.get_by_role("rowheader", name="loss")).to_be_visible(timeout=15_000)
            expect(tab.locator("#chart-series .scatterlayer .points path")).to_have_count(2)
            run.log_metric("loss", 0.0625, 2)
            expect(tab.locator("#chart-series .scatterlayer .points path")).to_have_count(3, timeout=15_000)
        expect(tab.locator(".title")).to_contain_text("finished", timeout=15_000)
        leave(tab)
        client.close()


@pytest.mark.slow
def test_exports_open_from_a_disk(tab: Page, browser: Browser, site: str, shown: Recorded, tmp_path: Path) -> None:
    """Charts, clicks and search work without a server or a network."""
    tab.goto(f"{site}/runs/{shown.ids['fast']}")
    with tab.expect_download() as download:
        tab.get_by_role("link", name="Export as HTML").click()
    download.value.save_as(tmp_path / "run.html")
    page.export_comparison(shown.store, [shown.ids["slow"], shown.ids["fast"]], tmp_path / "comparison.html")
    assert page.export_run(shown.store, shown.ids["fast"][:15], tmp_path / "again.html").stat().st_size > 1_000_000
    asked: list[str] = []
    alone = browser.new_context(offline=True).new_page()
    said: list[str] = []
    alone.on("console", lambda message: said.append(message.text))
    alone.on("pageerror", lambda error: said.append(str(error)))
    alone.on("request", lambda request: asked.append(request.url))
    for name, title in (("run.html", "fast"), ("comparison.html", "Comparison of 2 runs"), ("again.html", "fast")):
        alone.goto((tmp_path / name).as_uri())
        expect(alone.locator("h1")).to_have_text(title)
        drawn(alone, "chart-layers")
        alone.locator("#chart-layers .bars .point path").first.click(force=True)
        expect(alone.locator("#layers tr.chosen")).to_have_count(1)
        alone.fill("#layer-search", "no such layer")
        expect(alone.locator("#layers tbody tr:visible")).to_have_count(0)
        assert not alone.locator("a[href^='/']").count()
    assert said == []
    assert all(url.startswith("file:") for url in asked)
    alone.context.close()


def test_no_name_and_no_value_is_run(tab: Page, browser: Browser, site: str, shown: Recorded, tmp_path: Path) -> None:
    """HTML and script everywhere, on the pages, in charts and in exported files: all of it is text."""
    ids = shown.hostile
    # The lists show all of them at once; the other pages take the worst ones in turns.
    addresses = [
        "/",
        "/runs",
        "/devices",
        "/sweeps",
        "/charts",
        *(f"/charts?metric={quote(text, safe='')}" for text in recorded.HOSTILE[:4]),
        f"/sweeps/{shown.sweeps['evil']}",
        *(f"/runs/{run_id}" for run_id in (*ids[:6], *ids[10:12])),
    ]
    addresses += ["/compare?" + "&".join(f"run={run_id}" for run_id in ids[start : start + 6]) for start in (0, 6)]
    addresses += [f"/device?name={quote(text, safe='')}" for text in recorded.HOSTILE[:3]]
    addresses += [
        f"/runs?project={quote(f'evil {text}', safe='')}&q={quote(text, safe='')}" for text in recorded.HOSTILE[:4]
    ]
    for address in addresses:
        tab.goto(site + address)
        for bar in tab.locator("#chart-layers .bars .point path, #chart-trends .points path").all()[:1]:
            bar.hover(force=True)
        assert tab.evaluate("window.hit") is None, address
        assert tab.locator("main img, main iframe, main [onerror], main [onload]").count() == 0
        assert tab.locator("a[href^='javascript']").count() == 0
    tab.goto(f"{site}/runs/{ids[0]}")
    expect(tab.locator("h1")).to_have_text(recorded.HOSTILE[0])
    drawn(tab, "chart-op-time")
    expect(tab.locator("#chart-op-time .yaxislayer-above")).to_contain_text("</script>")
    for run_id in ids[:2]:
        file = page.export_run(shown.store, run_id, tmp_path / "hostile.html")
        tab.goto(file.as_uri())
        assert tab.evaluate("window.hit") is None


def test_tables_are_read_without_javascript(browser: Browser, site: str, shown: Recorded) -> None:
    """Filters, columns, sorting, paging and comparing too: they are links and forms."""
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(f"{site}/runs?project=vision")
    tab.fill("input[name=q]", "type = 'PROFILE'")
    tab.get_by_role("button", name="Apply").click()
    expect(tab.locator("#runs tbody th")).to_have_text(["fast", "slow"])
    tab.get_by_role("link", name="Median, ms").click()
    expect(tab.locator("#runs tbody th")).to_have_text(["fast", "slow"])
    for box in tab.locator("input[name=run]").all():
        box.check()
    tab.locator("#compare-button").click()
    expect(tab.locator("#layers tbody tr")).not_to_have_count(0)
    tab.goto(f"{site}/runs/{shown.ids['fast']}")
    expect(tab.locator("#layers tbody tr")).to_have_count(len(recorded.EXAMPLE["layers"]["rows"]))
    tab.get_by_text("Operation types as a table").click()
    expect(tab.get_by_role("rowheader", name="Gemm")).to_be_visible()
    context.close()


def test_a_keyboard_is_enough(tab: Page, site: str, shown: Recorded) -> None:
    """Skip link first, focus that can be seen, headings that sort with Enter."""
    tab.goto(f"{site}/runs/{shown.ids['fast']}")
    tab.keyboard.press("Tab")
    expect(tab.locator(".skip")).to_be_focused()
    expect(tab.locator(".skip")).to_be_in_viewport()
    tab.keyboard.press("Enter")
    expect(tab.locator("#main")).to_be_focused()
    tab.keyboard.press("Tab")
    focused = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert focused == "solid"
    tab.locator("#layers th button").nth(4).focus()
    tab.keyboard.press("Enter")
    expect(tab.locator("#layers th[aria-sort=descending]")).to_have_count(1)
    tab.goto(f"{site}/runs")
    tab.locator("input[name=run]").first.focus()
    tab.keyboard.press("Space")
    expect(tab.locator("tr.ticked")).to_have_count(1)


@pytest.mark.parametrize("scheme", sampled(["light", "dark"], "dark"))
def test_nothing_is_cut_off_on_a_narrow_screen(browser: Browser, site: str, shown: Recorded, scheme: str) -> None:
    """Tables scroll within themselves; and text can be told from its ground in both schemes."""
    context = browser.new_context(viewport={"width": 360, "height": 700}, color_scheme=scheme)  # type: ignore[arg-type]
    tab = context.new_page()
    compared = f"/compare?run={shown.ids['slow']}&run={shown.ids['fast']}"
    for address in (
        "/",
        "/runs",
        f"/runs/{shown.ids['fast']}",
        f"/runs/{shown.hostile[0]}",
        compared,
        "/device?name=pi",
        "/charts",
    ):
        tab.goto(site + address)
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
        colors = tab.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        ink, ground = (sum(map(int, re.findall(r"\d+", color)[:3])) / 3 for color in colors)
        assert abs(ink - ground) > 150
        assert (ink > ground) == (scheme == "dark")
    context.close()


def test_a_run_is_changed_where_that_is_allowed(tab: Page, own: Recorded) -> None:
    """Label, archive, delete, from the forms."""
    run_id = own.ids["train"]
    with served(own.store, read_only=False) as site:
        tab.goto(f"{site}/runs/{run_id}")
        tab.get_by_label("Tag").fill("stage")
        tab.get_by_label("Value").fill("kept")
        tab.get_by_role("button", name="Label").click()
        expect(tab.locator(".tag")).to_have_text("stage kept")
        tab.get_by_role("button", name="Archive").click()
        expect(tab.locator(".title")).to_contain_text("archived")
        tab.get_by_label("for good").check()
        tab.get_by_role("button", name="Delete").click()
        expect(tab).to_have_url(f"{site}/runs?project=vision")
        assert run_id not in tab.content()
        leave(tab)
    with served(own.store) as site:
        tab.goto(f"{site}/runs/{own.ids['compile']}")
        expect(tab.get_by_role("button", name="Delete")).to_have_count(0)
        leave(tab)


def test_a_sweep_shows_the_front_and_its_devices(tab: Page, site: str, shown: Recorded, tmp_path: Path) -> None:
    """A click on a cell or a point leads to its run; the file works without a server."""
    sweep = shown.sweeps["sweep"]
    tab.goto(f"{site}/sweeps")
    tab.get_by_role("link", name="small").click()
    drawn(tab, "chart-front")
    drawn(tab, "chart-slots")
    expect(tab.locator("#chart-slots .bars .point")).to_have_count(8)
    tab.get_by_label("Heat map of").select_option("accuracy")
    tab.get_by_role("button", name="Show").click()
    expect(tab.get_by_role("heading", name="accuracy", exact=True)).to_be_visible()
    tab.locator(".heat td a").first.click()
    expect(tab).to_have_url(re.compile(r"/runs/[0-9a-f]+$"))
    tab.goto(page.export_run(shown.store, sweep, tmp_path / "sweep.html").as_uri())
    drawn(tab, "chart-front")
    assert not tab.locator("a[href^='/']").count()


SEVERE = {"serious", "critical"}
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")


def check_accessible(tab: Page) -> None:
    """Let axe look for what keeps people out."""
    tab.evaluate(AXE)
    found = tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    severe = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found if one["impact"] in SEVERE]
    assert severe == [], tab.url


def check_width(tab: Page) -> None:
    """The page itself must not scroll sideways; tables in it may."""
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.evaluate(wide) <= 0, tab.url


@pytest.mark.parametrize(("scheme", "width"), sampled([("light", 1280), ("dark", 390)], ("dark", 390)))
def test_every_page_is_open_to_everybody(
    browser: Browser, shown: Recorded, tmp_path: Path, scheme: Literal["light", "dark"], width: int
) -> None:
    """Nothing that axe calls serious or critical, in the light on a desk and in the dark on a phone."""
    ids = shown.ids
    compared = f"/compare?run={ids['slow']}&run={ids['fast']}"
    both = f"/runs/{ids['fast']}/graph?of={ids['fast']}/input&against={ids['slow']}/input"
    pages = [
        "/projects",
        "/runs",
        "/devices",
        "/device?name=pi",
        compared,
        "/sweeps",
        "/runs/none",
        both,
        "/charts",
        "/bisections",
    ]
    pages += [f"/sweeps/{shown.sweeps['sweep']}", *(f"/runs/{ids[name]}" for name in ("fast", "failed", "train"))]
    page.export_run(shown.store, ids["fast"], tmp_path / "run.html")
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    tab = context.new_page()
    tab.set_default_timeout(_LIMIT_MS)
    with served(shown.store, read_only=False) as site:
        for address in (*(site + path for path in pages), (tmp_path / "run.html").as_uri()):
            tab.goto(address)
            tab.wait_for_load_state("networkidle")
            check_accessible(tab)
            check_width(tab)
        leave(tab)
    context.close()


def test_a_graph_leads_to_its_layer_and_back(tab: Page, site: str, shown: Recorded) -> None:
    """By mouse and by keyboard; colored by the time that was measured."""
    tab.goto(f"{site}/runs/{shown.ids['fast']}")
    graph = tab.locator("#graph")
    graph.scroll_into_view_if_needed()
    expect(graph).to_have_attribute("data-drawn", "yes")
    nodes = graph.locator("g.node")
    expect(nodes).to_have_count(10)
    assert graph.locator(".graph-color option").all_inner_texts() == ["Time, ms", "Placement", "Precision", "Nothing"]
    expect(graph.locator("g.node.heat-8")).to_have_count(3)
    view = graph.locator(".graph-view")
    view.focus()
    for _ in range(2):
        view.press("ArrowDown")
    expect(graph.locator(".graph-panel")).to_contain_text("Conv conv/0")
    expect(graph.locator(".graph-panel")).to_contain_text("inputs x float32 [1, 3, 16, 16]")
    view.press("Enter")
    expect(tab.locator("#layers tr.chosen")).to_have_id("layer-1")
    tab.locator("#layer-3").get_by_role("button", name="3").click()
    expect(graph.locator(".graph-panel")).to_contain_text("GlobalAveragePool pool")
    graph.locator(".graph-color").select_option("precision")
    expect(graph.locator("g.node.word-1")).to_have_count(10)
    graph.locator(".graph-find").fill("add")
    graph.locator(".graph-find").press("Enter")
    expect(graph.locator("g.node.chosen")).to_contain_text("Add")


def test_two_graphs_stand_side_by_side(tab: Page, site: str, shown: Recorded) -> None:
    """From a comparison; what is chosen in one is chosen in the other."""
    tab.goto(f"{site}/compare?run={shown.ids['slow']}&run={shown.ids['fast']}")
    tab.get_by_role("link", name="Graph").click()
    expect(tab.locator("#graph")).to_have_attribute("data-drawn", "yes")
    sides = tab.locator(".graph-side")
    expect(sides).to_have_count(2)
    expect(sides.first.locator("g.node")).to_have_count(10)
    sides.first.locator("g.node").first.click()
    for side in (0, 1):
        expect(sides.nth(side).locator("g.node.chosen")).to_contain_text("Conv")


def test_a_graph_of_strangers_stays_text(tab: Page, site: str, shown: Recorded) -> None:
    """Names of nodes and operators that try to be HTML, in the page and exported."""
    for run_id in shown.hostile[:2:2]:
        tab.goto(f"{site}/runs/{run_id}/graph")
        expect(tab.locator("#graph")).to_have_attribute("data-drawn", "yes")
        tab.locator("g.node").first.click()
        expect(tab.locator(".graph-panel")).to_contain_text(recorded.HOSTILE[0])
        assert tab.evaluate("window.hit") is None


@pytest.mark.slow
def test_a_long_graph_is_there_from_its_beginning(tab: Page, tmp_path: Path) -> None:
    """Its top before all of it; nothing is left out, the places are always the same, and who asks need not wait."""
    drawn_by = random.Random(1)  # noqa: S311 - a network
    made = ["x"]
    for _ in range(400):
        made.append(f"t{len(made)}")
    nodes = tuple(
        Node(f"add {number}", "Add", (made[number - 1], made[max(0, number - 2 - int(drawn_by.expovariate(0.25)))]),
             (made[number],))
        for number in range(1, len(made))
    )  # fmt: skip
    path = tmp_path / "long.html"
    path.write_text(graph_html(shown_graph(ModelGraph("long", "ONNX", nodes, inputs=("x",), outputs=(made[-1],)))))
    told = """new MutationObserver(() => (window.told ??= []).push(document.getElementById("graph").dataset.drawn))
        .observe(document, { subtree: true, attributes: true, attributeFilter: ["data-drawn"] });"""
    tab.add_init_script(told)
    places = "all => all.map(one => one.firstChild.getAttribute('x') + ' ' + one.firstChild.getAttribute('y'))"
    seen = []
    for _ in range(2):
        tab.goto(path.as_uri())
        expect(tab.locator("#graph")).to_have_attribute("data-drawn", "yes")
        assert tab.evaluate("told[0]") == "part"
        expect(tab.locator("g.node")).to_have_count(400)
        assert tab.locator("path.edge").count() == tab.evaluate(
            "new Set(JSON.parse(document.getElementById('graph-data').textContent).graphs[0].nodes"
            ".flatMap((node, number) => node[3].map((tensor) => `${tensor} ${number}`))).size + 1"
        )
        seen.append(tab.locator("g.node").evaluate_all(places))
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 400
    tab.goto(path.as_uri(), wait_until="commit")
    tab.locator("#graph[data-drawn]").wait_for()
    tab.locator(".graph-find").fill("400")
    tab.locator(".graph-find").press("Enter")
    expect(tab.locator("g.node.chosen")).to_contain_text("add 400")
    assert tab.locator("g.node").evaluate_all(places) == seen[0]
