"""The report: as data, as a table, as a page."""

from html.parser import HTMLParser
from pathlib import Path

from support.deploy_nets import Head, Residual, image, warm
from torch import nn

from embedl_deploy import transform
from embedl_deploy.tensorrt import TENSORRT_PATTERNS


class Page(HTMLParser):
    """Collects the tags and texts of a page and insists that it is well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_table() -> None:
    """Steps with proofs, what was not done, what was left, and the whole model."""
    text = str(transform(warm(Head(pool=2)), (image(),), TENSORRT_PATTERNS).report)
    assert text.startswith("Head, traced by fx")
    assert "RemoveDropoutPattern" in text
    assert "FlattenLinearToConv1x1Pattern  fc     the flattened map is 2×2, not 1×1" in text
    assert text.endswith("Whole model, before and after: exact")


def test_nothing_done() -> None:
    """An empty report says so."""
    report = transform(nn.Sequential(nn.Embedding(3, 3), nn.Softplus()), None, TENSORRT_PATTERNS).report
    assert "nothing was changed" in str(report)
    assert "Left as they are: 1 Embedding" in str(report)
    assert "not proved (no example inputs)" in str(report)


def test_page(tmp_path: Path) -> None:
    """Well formed, self-contained, with both graphs and every step."""
    report = transform(warm(Residual()), (image(),), TENSORRT_PATTERNS).report
    page = Page(report.save_html(tmp_path / "report.html").read_text(encoding="utf-8"))
    assert not page.open
    assert not page.links
    assert "script" not in page.tags
    assert page.tags.count("svg") == 2
    assert page.tags.count("rect") == len(report.before.rows) + len(report.after.rows)
    for done in report.done:
        assert done.step.pattern.__name__ in page.texts
    assert page.tags.count("path") >= 1, "the skip connection is an arc"


def test_page_escapes_what_comes_from_the_model() -> None:
    """A class with angle brackets in its name does not break the page."""
    odd = type("<b>Model</b>", (Residual,), {})
    page = Page(transform(warm(odd()), (image(),), TENSORRT_PATTERNS).report.to_html())
    assert "b" not in page.tags
    assert "<b>Model</b>" in page.texts


def test_graphs_know_their_steps() -> None:
    """Before and after share the numbers that give them one color."""
    report = transform(warm(Residual()), (image(),), TENSORRT_PATTERNS).report
    before = {row.name: row.step for row in report.before.rows}
    after = {row.name: row.step for row in report.after.rows}
    assert before["conv2"] == before["bn2"] == after["conv2"] > 0
    assert before["x"] == 0
