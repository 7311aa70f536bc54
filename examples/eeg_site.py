"""Data set plugin of `tune_fedavg.py`: one site's part of UCI's EEG study."""

from __future__ import annotations

from typing import Annotated

import torch

from fne import Key, register
from fne.config import registry
from fne.core.dataset import Dataset, Samples
from fne.core.errors import SettingError


@register("data", "of_site")
def of_site(
    *,
    seed: int,
    site: Annotated[int, Key("number of the site", ge=0)],
    sites: Annotated[int, Key("number of sites that share the subjects", ge=1)] = 3,
) -> Dataset:
    """Recordings of UCI's EEG study of every `sites`-th subject, from number `site`; trials are split."""
    whole: Dataset = registry.load("data", "eeg_uci")(seed=seed, split="trial")
    if site >= sites:
        raise SettingError("data.site", site, f"below data.sites = {sites}")

    def own(part: Samples) -> Samples:
        assert part.groups is not None
        return part.take(torch.nonzero(part.groups % sites == site).flatten())

    parts = {name: own(getattr(whole, name)) for name in ("train", "validation", "test")}
    return Dataset(
        name=f"{whole.name} of site {site}", classes=whole.classes, split=whole.split, source=whole.source,
        group_names=whole.group_names, **parts,
    )  # fmt: skip
