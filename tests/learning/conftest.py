"""Fixtures that several files about evolving weights share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.learning.evolving_parts import Build, Clouds, linear


@pytest.fixture
def lab(laboratory: Build, clouds: Clouds) -> SimpleNamespace:
    """Return a linear classifier over three nodes of unequal size with validation data of its own."""
    return laboratory(linear, clouds(9, 5, 14), clouds(60, seed=1)["n0"])
