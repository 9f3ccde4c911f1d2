"""The oldest JupyterLab that we say works: installed for the test, beside this environment, which has the newest."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, execute, run_all, shoot, wait_idle

pytestmark = pytest.mark.slow

OLDEST = "4.4"
TRAIN = """%%distributed
import jupyter_dtrain, time
for step in range(5000):
    jupyter_dtrain.log(loss=1 / (step + 1), step=step)
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def oldest(browser, tmp_path_factory):
    """The oldest JupyterLab; everything else comes from this environment."""
    folder = tmp_path_factory.mktemp("oldest")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=120)
    wanted = f"jupyterlab=={OLDEST}.*"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", wanted], capture_output=True, text=True, timeout=600, check=False
    )
    if installed.returncode:
        pytest.skip(f"needs {wanted} from a package index: {installed.stderr.strip().splitlines()[-1:]}")
    purelib = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    with open(f"{purelib}/rest.pth", "w") as file:
        file.write(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_CONFIG_PATH", f"{sys.prefix}/etc/jupyter")
        patch.setenv("PATH", f"{sysconfig.get_path('scripts')}:/usr/bin:/bin")
        server = Lab(folder / "lab", python=str(python), more=[f"{sys.prefix}/share/jupyter"])
        yield server
        server.close()


def test_the_oldest_jupyterlab_shows_panel_pills_and_curves(oldest, browser):
    """Interrupts from the panel work, too."""
    oldest.write("oldest.ipynb", "%load_ext jupyter_dtrain\n%distributed start -n 2 --name oldest", TRAIN)
    page = oldest.open(browser, "oldest.ipynb", width=1300)
    version = page.evaluate("window.jupyterapp.version")
    assert version.startswith(f"{OLDEST}."), version
    pill = page.locator(".dtrain-pill")
    expect(pill).to_have_text("all ranks")
    execute(page, "dtrain:show")
    panel = page.get_by_role("region", name="Distributed Training")
    expect(panel.get_by_role("button", name="Start a world…")).to_be_visible()
    run_all(page)
    expect(panel.locator(".dtrain-state")).to_have_text("run 1")
    expect(panel.locator(".dtrain-chart canvas").first).to_be_visible()
    expect(pill).to_contain_text("all ranks · running · step ")
    expect(page.locator(".jp-Notebook .dtrain-chart canvas")).to_be_visible()
    expect(page.locator(".dtrain-status")).to_contain_text("oldest · run 1")
    shoot(page, "lab-oldest")
    panel.get_by_role("button", name="Interrupt the cell on all ranks of oldest").click()
    wait_idle(page)
    expect(pill).to_have_text("all ranks")
    oldest.leave(page)
