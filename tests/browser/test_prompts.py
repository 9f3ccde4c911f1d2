"""Prompts of ranks in a page: the notebook's own box, the panel's field, and the sidebar's."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import execute, run_cell, shoot, wait_idle

START = "%load_ext jupyter_dtrain\n%distributed start -n 2 --name asked"
DEBUGGED = """%%distributed
import os
rank = int(os.environ["RANK"])
loss = 0.5 + rank
if rank == 1:
    breakpoint()
print("loss", loss)
"""
NAMED = "%%distributed\nprint('Hello', input('Who are you? '))"
HIDDEN = "%%distributed\nimport getpass\nprint(len(getpass.getpass('Token: ')))"
ONE = "%%distributed\nif rank == 1: print('Hello', input('Who is there? '))"
TWICE = "%%distributed -r 0\nprint(input('first? ') + input('second? '))"


@pytest.fixture(scope="module")
def page(browser, lab):
    """A notebook with a world, and cells that ask."""
    lab.write("asked.ipynb", START, DEBUGGED, NAMED, HIDDEN, ONE, TWICE)
    lab.write("other.ipynb", "1 + 1")
    page = lab.open(browser, "asked.ipynb", width=1300, height=1000)
    run_cell(page, 0)
    wait_idle(page)
    yield page
    lab.leave(page)


def cell(page: Page, index: int):
    """A cell of the notebook."""
    return page.locator(".jp-Notebook-cell").nth(index)


def box(page: Page, index: int):
    """JupyterLab's own input box below a cell."""
    return cell(page, index).locator(".jp-Stdin-input")


def show(page: Page, path: str) -> None:
    """Bring a notebook to the front."""
    page.evaluate("(path) => void window.jupyterapp.commands.execute('docmanager:open', {path})", path)
    expect(page.locator(".lm-TabBar-tab.jp-mod-current").filter(has_text=path)).to_be_visible()


def test_a_debugger_is_led_in_the_notebook_s_own_box_and_in_the_panel(page):
    """The panel says who asks and who waits, and what the debugger has said."""
    run_cell(page, 1)
    expect(cell(page, 1).locator(".jp-Stdin-prompt")).to_contain_text("rank 1 (Pdb)")
    panel = cell(page, 1).locator(".dtrain-run")
    expect(panel.get_by_role("status").first).to_contain_text("Rank 1 is at a prompt (cell [2], line ")
    said = panel.get_by_label("What the debugger has said")
    expect(said).to_contain_text("cell [2]")
    box(page, 1).fill("p loss")
    box(page, 1).press("Enter")
    expect(cell(page, 1).locator(".jp-OutputArea-output").filter(has_text="1.5").first).to_be_visible()
    expect(said).to_contain_text("1.5")
    field = panel.get_by_label("Rank 1: (Pdb)", exact=True)
    field.fill("p loss + 1")
    shoot(page, "prompt-debugger")
    box(page, 1).evaluate("(one) => { one.dataset.old = ''; }")
    field.press("Enter")
    expect(said).to_contain_text("(Pdb) p loss + 1\n2.5")
    # The box of the command before goes, and the kernel asks on in another, which does not take the focus.
    new = cell(page, 1).locator(".jp-Stdin-input:not([data-old])")
    expect(new).to_have_count(1)
    expect(box(page, 1)).to_have_count(1)
    expect(field).to_be_focused()
    new.fill("c")
    new.press("Enter")
    wait_idle(page)
    expect(cell(page, 1)).to_contain_text("[1] loss 1.5")
    expect(panel).to_have_count(0)


def test_the_panel_s_field_answers_and_the_box_goes(page):
    """All ranks that ask the same are asked once."""
    run_cell(page, 2)
    expect(box(page, 2)).to_be_visible()
    panel = cell(page, 2).locator(".dtrain-run")
    field = panel.get_by_label("Ranks 0-1: Who are you?", exact=True)
    expect(panel.get_by_text("Ranks 0-1 are at a prompt (cell [3], line 2).")).to_be_visible()
    field.fill("Ada")
    shoot(page, "prompt-input")
    panel.get_by_role("button", name="Answer: Ranks 0-1: Who are you?").click()
    wait_idle(page)
    expect(cell(page, 2)).to_contain_text("[0-1] Hello Ada")
    expect(box(page, 2)).to_have_count(0)


def test_a_password_is_hidden(page):
    """In the panel's field as in the box."""
    run_cell(page, 3)
    panel = cell(page, 3).locator(".dtrain-run")
    field = panel.get_by_label("Ranks 0-1: Token:", exact=True)
    expect(field).to_have_attribute("type", "password")
    expect(box(page, 3)).to_have_attribute("type", "password")
    field.fill("abcdefg")
    shoot(page, "prompt-password")
    field.press("Enter")
    wait_idle(page)
    expect(cell(page, 3)).to_contain_text("[0-1] 7")
    expect(cell(page, 3)).not_to_contain_text("abcdefg")


def test_another_prompt_of_the_same_cell_has_its_own_box(page):
    """That of the first goes when the page has answered it."""
    run_cell(page, 5)
    panel = cell(page, 5).locator(".dtrain-run")
    panel.get_by_label("Rank 0: first?", exact=True).fill("one")
    page.keyboard.press("Enter")
    expect(cell(page, 5).locator(".jp-Stdin-prompt")).to_have_text(["rank 0: second? "])
    expect(panel.locator(".dtrain-prompt")).to_have_count(1)
    expect(panel.get_by_label("Rank 0: second?", exact=True)).to_be_focused()
    box(page, 5).fill(" two")
    box(page, 5).press("Enter")
    wait_idle(page)
    expect(cell(page, 5)).to_contain_text("[0] one two")


def test_who_looks_at_another_notebook_sees_it_and_answers_in_the_sidebar(page):
    """As long as the notebook is open that controls the world."""
    run_cell(page, 4)
    expect(box(page, 4)).to_be_visible()
    execute(page, "dtrain:show")
    sidebar = page.get_by_role("region", name="Distributed Training")
    prompts = sidebar.get_by_role("region", name="Prompts")
    expect(prompts.get_by_text("Rank 1 is at a prompt (cell [6], line 2)")).to_be_visible()
    show(page, "other.ipynb")
    expect(sidebar.get_by_role("log", name="Items that need attention")).to_contain_text("rank 1 is at a prompt")
    prompts.get_by_label("Rank 1: Who is there?", exact=True).fill("Grace")
    shoot(page, "prompt-sidebar")
    page.keyboard.press("Enter")
    expect(prompts).to_have_count(0)
    expect(sidebar.get_by_role("log", name="Items that need attention")).to_have_count(0)
    show(page, "asked.ipynb")
    wait_idle(page)
    expect(cell(page, 4)).to_contain_text("[1] Hello Grace")
    expect(box(page, 4)).to_have_count(0)


def test_a_page_that_is_reloaded_while_a_rank_asks_can_answer(page):
    """JupyterLab has lost its box then."""
    run_cell(page, 2)
    expect(box(page, 2)).to_be_visible()
    execute(page, "docmanager:save")
    page.reload()
    page.evaluate("() => window.jupyterapp.restored")
    show(page, "asked.ipynb")  # the other notebook, of the test before, may be in front
    panel = cell(page, 2).locator(".dtrain-run")
    field = panel.get_by_label("Ranks 0-1: Who are you?", exact=True)
    expect(field).to_be_visible()
    expect(box(page, 2)).to_have_count(0)
    field.fill("Emmy")
    field.press("Enter")
    wait_idle(page)
    expect(cell(page, 2)).to_contain_text("[0-1] Hello Emmy")
