"""Build the documentation site strictly into build/site: `python tools/build_docs.py`.

The parts that come from the code are written first, then Zensical builds all pages. Warnings are errors: a link or an
anchor that leads nowhere, a page or a part that is missing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"
SITE = ROOT / "build" / "site"


def build() -> Path:
    """Build the site and return its folder.

    Raises:
        SystemExit: with Zensical's words, if anything is wrong.
    """
    path = os.pathsep.join([str(TOOLS), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    for command in (
        [str(TOOLS / "docs_fragments.py"), str(ROOT / "build" / "fragments")],
        ["-m", "zensical", "build", "--strict", "--clean"],
    ):
        done = subprocess.run(
            [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr))
    return SITE


if __name__ == "__main__":
    print(f"open {build() / 'index.html'}")
