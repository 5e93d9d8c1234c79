"""The distribution `nixl` that stands for NIXL, so that projects which require it get ours."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

META = Path(__file__).parents[1] / "meta"


def build(tmp_path, monkeypatch, version=None, distribution=None):
    for name, value in (("NIXL_VERSION", version), ("NIXL_DISTRIBUTION", distribution)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("meta_backend", META / "meta_backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    return tmp_path / backend.build_wheel(str(tmp_path))


@pytest.mark.parametrize(
    ("asked", "distribution", "accepted"),
    [
        (None, None, "nixl[cu13]==1.5.1"),
        ("1.5.0", None, "nixl[cu12]==1.5.0"),
        ("1.5.0", "nixl-cu13", "nixl-cu13==1.5.0"),
        (None, "nixl-cu12", "nixl_cu12>=1.5"),
    ],
)
def test_a_requirement_of_nixl_is_met(tmp_path, monkeypatch, asked, distribution, accepted):
    wheel = build(tmp_path, monkeypatch, asked, distribution)
    # Requirements of other packages are not checked: towline-nixl is installed here, or not, as the test runs.
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-index", "--find-links", str(tmp_path),
         "--ignore-installed", accepted],
        capture_output=True, text=True, check=False,
    )
    if "No module named pip" in done.stderr:
        pytest.skip("there is no pip")
    assert done.returncode == 0, done.stderr
    assert wheel.name.rsplit("-", 3)[0] in done.stdout.replace("Would install ", "").replace("nixl-cu", "nixl_cu")
    with zipfile.ZipFile(wheel) as files:
        metadata = files.read(next(name for name in files.namelist() if name.endswith("METADATA"))).decode()
    assert "Requires-Dist: towline-nixl\n" in metadata
    assert f"Name: {distribution or 'nixl'}\n" in metadata
    assert ("Provides-Extra: cu13\n" in metadata) == (distribution is None)


def test_another_version_does_not_pass_for_it(tmp_path, monkeypatch):
    build(tmp_path, monkeypatch, "1.5.0")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-index", "--find-links", str(tmp_path),
         "--ignore-installed", "nixl==1.5.1"],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode != 0


def test_a_bad_version_is_refused(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="NIXL_VERSION is 'new'"):
        build(tmp_path, monkeypatch, "new")
    with pytest.raises(SystemExit, match="NIXL_DISTRIBUTION is 'torch'"):
        build(tmp_path, monkeypatch, None, "torch")
