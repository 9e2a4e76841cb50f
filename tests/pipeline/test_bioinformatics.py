"""Snakemake and R: thin hand-overs to the same commands and classes, tried on the real programs.

``pytest -m snakemake`` makes a virtual environment, or takes the one whose ``python`` CEHM_SNAKEMAKE_PYTHON names;
``pytest -m r`` needs R with reticulate. Nextflow is not run: its program is not in the registries that the tests may
use. Of its file, the commands are read.
"""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from cehm_dask import CEHM, cli
from tests.docs.pages import blocks
from tests.pipeline.test_schedulers import COMMAND, PIPELINES, environment_of

DOCS = PIPELINES.parent / "docs"


@pytest.fixture
def labels(tmp_path):
    """A table of base labels with gaps, and the consensus of it."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 200)
    found = np.stack([np.where(rng.random(200) < 0.8, truth, rng.integers(0, 3, 200)) for _ in range(8)], axis=1)
    found[rng.random(found.shape) < 0.05] = -1
    frame = pd.DataFrame(found).rename(columns="member{}".format).assign(cell=[f"c{row}" for row in range(200)])
    frame.to_csv(tmp_path / "labels.csv", index=False)
    return np.asarray(CEHM(3, random_state=0).fit(found).labels_)


@pytest.mark.snakemake
def test_snakemake__its_rules_give_the_labels_of_python(labels, tmp_path):
    python = environment_of("snakemake", "snakemake>=9,<10")
    command = [python.with_name("snakemake"), "--snakefile", PIPELINES / "Snakefile", "--cores", "1", "--config"]
    command += ["labels=labels.csv", "clusters=3", "id=cell", f"cehm={COMMAND}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "results/consensus.csv")["label"], labels)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600)
    assert "Nothing to be done" in again.stderr


def test_nextflow__its_commands_parse():
    """Both commands, with values for what Nextflow fills in."""
    text = (PIPELINES / "main.nf").read_text().replace("\\\n", " ")
    scripts = [line.strip() for line in text.splitlines() if line.strip().startswith("cehm ")]
    assert len(scripts) == 2
    for script in scripts:
        words = re.sub(r"'?\$\{([^}]*)\}'?", lambda match: "" if match[1] == "row_id" else "3", script).split()[1:]
        cli.main.commands[words[0]].make_context(words[0], words[1:])


@pytest.mark.r
def test_r__the_snippet_of_the_guide_gives_the_labels_of_python(labels, tmp_path):
    if shutil.which("Rscript") is None:
        pytest.skip("no R here: apt-get install r-cran-reticulate")
    (snippet,) = [block.text for block in blocks(DOCS / "schedulers.md") if block.language == "r"]
    (tmp_path / "consensus.R").write_text(snippet)
    settings = {**os.environ, "RETICULATE_PYTHON": sys.executable}
    done = subprocess.run(
        ["Rscript", "consensus.R"], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "consensus.csv")["label"], labels)
