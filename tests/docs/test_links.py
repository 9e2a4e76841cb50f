"""Every relative link and anchor of the pages leads somewhere, and the site can be built from them."""

import os
import subprocess
import sys

import pytest
import yaml

from tests.docs.pages import PAGES, ROOT, anchors, links, name_of


def dead(page):
    """Links of a page that lead nowhere."""
    found = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links__lead_somewhere(page):
    assert dead(page) == []


def test_links__dead_ones_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A head\n[a](page.md#a-head) [b](page.md#no-head) [c](gone.md) ![d](gone.png) `[e](code.md)`\n")
    assert dead(page) == ["page.md#no-head", "gone.md", "gone.png"]


def listed(nav):
    """Pages that the navigation of the site names."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in listed(part)]


def test_site__lists_every_page_once():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs"))
    assert sorted(listed(config["nav"])) == pages


def test_site__is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    assert 'id="cehm_dask.estimator.CEHM.fit"' in (tmp_path / "site" / "api.html").read_text()


def test_readme__fits_a_screen_and_a_half():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90
