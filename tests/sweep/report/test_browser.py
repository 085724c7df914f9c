"""report.html in a headless Chromium: it draws without a network, and sorts, filters and hides as it is clicked."""

import shutil

import pytest

from glmexp.sweep.report import build
from glmexp.trial.record import State
from tests.sweep.report.fake import FakeSweep, grid, measured
from tests.sweep.report.test_build import HOSTILE

sync_api = pytest.importorskip("playwright.sync_api")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser is found: none of {', '.join(BROWSERS)}")


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens the report of a folder; checks at the end that the page had no error and asked nothing of a network."""
    page = chromium.new_page(viewport={"width": 1400, "height": 1000})
    problems, requests = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))

    def opened(folder):
        build(folder)
        page.goto((folder / "report.html").as_uri())
        return page

    yield opened
    page.close()
    assert not problems
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert len([url for url in requests if url.startswith("file:")]) == 1


def column(page, index):
    return page.eval_on_selector_all("#trials tbody tr", f"rows => rows.map(row => row.cells[{index}].textContent)")


def number(text):
    return float(text.replace(",", ""))


def test_it_is_drawn_and_clicked(opened, tmp_path):
    grid(tmp_path)
    page = opened(tmp_path)
    assert page.locator(".js-plotly-plot").count() == 3
    assert page.locator("#pareto .scatterlayer .point").count() == 54  # 53 complete ones and the star
    assert page.locator("tr.recommended").count() == 1
    struck = page.locator("tr.dominated td.figure").first
    assert "line-through" in struck.evaluate("cell => getComputedStyle(cell).textDecoration")

    heads = page.eval_on_selector_all("#trials thead th", "heads => heads.map(head => head.textContent)")
    assert {"tokens/s", "GPU GiB", "fits 24 GB", "fits 141 GB", "predicted GPU GiB"} <= set(heads)
    speed = heads.index("tokens/s")
    page.click("#trials thead th button:text-is('tokens/s')")
    rising = [number(text) for text in column(page, speed) if text]
    assert rising == sorted(rising)
    assert column(page, speed)[-1] == "", "what was not measured comes last"
    page.click("#trials thead th button:text-is('tokens/s')")
    assert [number(text) for text in column(page, speed) if text] == rising[::-1]
    assert column(page, speed)[-1] == ""

    page.fill("#filter", "LORA micro8")
    assert page.inner_text("#shown") == "6"
    page.fill("#filter", "")
    page.click(".chip[data-state=complete]")
    assert page.inner_text("#shown") == "8"
    assert page.locator("#trials tbody tr:visible").count() == 8
    page.click(".chip[data-state=complete]")
    assert page.inner_text("#shown") == "61"

    page.locator("#pareto .legendtoggle").nth(1).click()  # hides what is dominated
    front, beyond = (page.evaluate(f"document.getElementById('pareto').data[{number}].x.length") for number in (0, 2))
    sync_api.expect(page.locator("#pareto .scatterlayer .point")).to_have_count(front + beyond + 1)
    page.locator("#pareto .scatterlayer .point").last.hover(force=True)
    page.wait_for_selector("#pareto .hovertext")
    assert "tokens/s" in page.text_content("#pareto .hoverlayer")


def test_hostile_text_does_nothing(opened, tmp_path):
    sweep = FakeSweep(tmp_path)
    sweep.trial("one", [f"data.path={HOSTILE}"], State.failed, f"{HOSTILE}\n{HOSTILE}", configured=False)
    sweep.trial("two", [f"data.path=2{HOSTILE}"], configured=False, predicted=21.0, **measured(100, 20.0))
    sweep.trial("three", [f"data.path=3{HOSTILE}"], configured=False, **measured(90, 10.0))
    page = opened(tmp_path)
    page.locator("#pareto .scatterlayer .point").last.hover(force=True)
    page.wait_for_selector("#pareto .hovertext")
    assert "<script>alert(1)</script>" in page.text_content("#pareto .hoverlayer")
    assert page.locator("img, iframe, a[href*=javascript]").count() == 0
    reason = page.locator("tr[data-state=failed] td:last-child")
    reason.locator("summary").click()
    assert "alert(2)" in reason.locator("pre").inner_text()


def test_a_sweep_without_figures(opened, tmp_path):
    FakeSweep(tmp_path).trial("one", ["zero=stage2"], State.failed, "why", configured=False)
    page = opened(tmp_path)
    page.click("#trials thead th >> nth=0")
    assert "why" in page.inner_text(".answer")
