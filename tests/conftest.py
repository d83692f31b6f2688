"""Set the scene for all tests: no hub, one thread, small deterministic models."""

from __future__ import annotations

import gc
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"
# Tests run side by side, one per core: threads of their own would make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import pytest

import forked

_frozen = float("-inf")

# Files whose tests share something costly (a browser, a cluster, what two ranks have trained): one worker runs all of a
# group. The marker of xdist does nothing with this pytest.
GROUPS = {
    "test_ray.py": "ray",
    "test_report_page.py": "browser",
    "test_attention_page.py": "browser",
    "test_site.py": "browser",
    **{name: name for name in ("test_ddp.py", "test_export.py", "test_compare_kill.py", "test_conditions.py")},
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return GROUPS.get(nodeid.partition("::")[0].rpartition("/")[2], nodeid)

    return Grouped(config, log)


@pytest.fixture(autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _what_is_old_is_not_collected():
    """Spare the garbage collector what earlier tests imported: Trainer calls it at the end of every training."""
    global _frozen
    if time.monotonic() - _frozen > 20:
        gc.collect()
        forked.spare_collector()
        _frozen = time.monotonic()


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory):
    """Keep tokenised data out of the user's cache."""
    os.environ["MIXWELL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
