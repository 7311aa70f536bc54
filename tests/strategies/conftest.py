"""Fixtures that several files about FNE share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.strategies.fne_parts import Build, Clouds, linear


@pytest.fixture
def lab(laboratory: Build, clouds: Clouds) -> SimpleNamespace:
    """Return a linear classifier over five nodes of unequal size with validation data of its own."""
    return laboratory(linear, clouds(3, 9, 5, 14, 7), clouds(60, seed=1)["n0"])
