"""The page in a real browser: Chromium and `pip install playwright axe-playwright-python`."""

import shutil

import pytest
from server_process import serving
from tiny_world import trained_run

from orqa_jax.predict import load_answerer

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

QUESTION = "When did Dunya Holt found the salt market of Velduna?"
# Adds up the shifts of the layout that no key or click explains.
WATCH_SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""
SIZES = {"desk": (1200, 900), "phone": (360, 740)}


@pytest.fixture(scope="module")
def server():
    with serving(trained_run(), "--watch-seconds", 0) as started:
        yield started


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        # Without its own sandbox it also runs as root; only pages of this test are opened.
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(params=[(size, scheme) for size in SIZES for scheme in ("light", "dark")])
def page(request, browser, server):
    size, scheme = request.param
    width, height = SIZES[size]
    # axe runs as a script of the page, which the page's own policy would not let in.
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True
    )
    opened = context.new_page()
    opened.add_init_script(WATCH_SHIFTS)
    opened.goto(f"http://127.0.0.1:{server.port}/")
    opened.wait_for_function("document.getElementById('about').textContent")
    yield opened
    context.close()


def wait_for_answer(page):
    page.wait_for_selector("#found:not([hidden])")
    page.wait_for_selector("#results[aria-busy=false]")


def test_accessible_on_every_screen_and_nothing_moves(page):
    for question in ("", QUESTION):
        if question:
            playwright.expect(page.locator("#question")).to_be_focused()
            page.keyboard.type(question)
            page.keyboard.press("Enter")
            wait_for_answer(page)
            page.locator("#candidates summary").first.press("Enter")
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("window.shifts") == 0


def test_by_keyboard_alone_under_the_policy(browser, server):
    context = browser.new_context()
    page = context.new_page()
    complaints, hosts = [], set()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.goto(f"http://127.0.0.1:{server.port}/")
    playwright.expect(page.locator("#question")).to_be_focused()
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    wait_for_answer(page)

    expected = load_answerer(trained_run()).answer([QUESTION])[0]
    best = expected.candidates[0]
    assert page.text_content("#answer-text") == best.answer
    assert page.text_content("#answer-block mark") == best.answer
    assert page.text_content("#answer-block") == best.block_text
    assert page.text_content("#answer-block .sentence") == best.block_text[slice(*best.sentence)]
    assert best.title in page.text_content("#answer-source")
    assert page.is_hidden("#caution")
    names = page.locator("#candidates .name").all_text_contents()
    assert names == [candidate.answer for candidate in expected.candidates[1:]]
    headings = page.locator("#columns h3").all_text_contents()
    assert headings == ["BM25 (words)", "Dense (meaning)", "Hybrid (both)"]
    dense = page.locator("#columns > div").nth(1).locator("summary")
    assert dense.count() == 10
    for row in dense.all():
        width = row.locator(".bar span").evaluate("bar => bar.getBoundingClientRect().width")
        assert 0 < width <= row.locator(".bar").evaluate("bar => bar.getBoundingClientRect().width")

    for _ in range(2):  # past the button, to the first of the other candidates
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    opened = page.locator("#candidates li").first
    assert opened.locator("mark").text_content() == expected.candidates[1].answer
    assert opened.locator("blockquote").is_visible()

    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "question"
    page.keyboard.type("Who?")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#answer-text")).not_to_have_text(best.answer)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#question") == QUESTION
    page.go_back()
    playwright.expect(page.locator("#answer-text")).to_have_text(best.answer)

    # What is refused is said.
    page.fill("#question", "w" * 1000)
    page.evaluate("document.getElementById('question').maxLength = 2000")
    page.fill("#question", "w" * 1001)
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.wrong")
    assert "1001 characters" in page.text_content("#status")
    # The browser itself notes each response of status 400.
    assert [text for text in complaints if "status of 400" not in text] == []
    assert hosts == {f"127.0.0.1:{server.port}"}
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 5000  # loosely: other tests may be running
    context.close()


def test_answers_of_documents_are_text_and_nothing_else(browser, server):
    """Titles and texts come from anywhere; offsets count characters, not UTF-16 units."""
    text = "🏰🏰 <img src=x onerror=alert(1)> stands. Anka 🏰 lit it. It rained."
    start = text.index("Anka 🏰")
    sentence = text.index("Anka"), text.index(" It rained")
    candidate = {
        "answer": "Anka 🏰",
        "block": 3,
        "title": "<b>Keep</b>",
        "document_id": "javascript:alert(1)",
        "start": 100 + start,
        "end": 100 + start + 6,
        "block_start": 100,
        "block_text": text,
        "sentence_start": 100 + sentence[0],
        "sentence_end": 100 + sentence[1],
        "score": -1.0,
        "retrieval_score": 0.0,
        "reader_score": -1.0,
        "probability": None,
    }
    answer = {
        "question": "Who?", "answer": "Anka 🏰", "probability": 0.043, "abstain": True,
        "candidates": [candidate, candidate | {"score": -3.0}], "weights_fingerprint": "f",
    }  # fmt: skip
    block = {name: candidate[name] for name in ("block", "title", "block_start", "block_text")}
    block |= {"document_id": "https://wiki.example/Keep", "score": -2.0}
    retrieved = {"question": "Who?", "retrieved": {"dense": [block, block | {"score": -4.0}]}}
    context = browser.new_context()
    page = context.new_page()
    page.on("dialog", lambda dialog: pytest.fail("a document ran a script"))
    page.route("**/v1/answer", lambda route: route.fulfill(json=answer))
    page.route("**/v1/retrieve", lambda route: route.fulfill(json=retrieved))
    page.goto(f"http://127.0.0.1:{server.port}/#q=Who%3F")
    wait_for_answer(page)
    assert page.input_value("#question") == "Who?"
    assert page.text_content("#answer-block mark") == "Anka 🏰"
    assert page.text_content("#answer-block .sentence") == "Anka 🏰 lit it."
    assert page.text_content("#answer-block") == text
    assert page.is_visible("#caution")
    source = page.text_content("#answer-source")
    assert source.startswith("<b>Keep</b> · document javascript:alert(1) · block 3")
    assert "probability of 4.3%" in source
    assert page.locator("#answer-source a").count() == 0
    link = page.locator("#columns a").first
    assert link.get_attribute("href") == "https://wiki.example/Keep"
    assert page.locator("#columns .tag").count() == 2
    assert page.locator("#found img, #found b").count() == 0
    context.close()
