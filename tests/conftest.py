"""What do all tests share? Where the reference cases are, and the folder of helpers on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# machines differ in speed; a property that holds slowly still holds
settings.register_profile("steady", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def cases() -> Path:
    """The reference cases beside the checkout."""
    folder = Path(__file__).parents[2] / "shared" / "cases"
    assert folder.is_dir(), f"the reference cases are expected in {folder}"
    return folder
