"""Names and positions of EEG channels by the 10-05 system."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mne


def common_name(name: str) -> str:
    """Return a channel's name in the common spelling: `EEG FP1-REF` and `Fp1.` are `Fp1`; `T3` stays `T3`."""
    bare = re.sub(r"^EEG[\s_:-]+(?=[A-Za-z])", "", name.strip(" ."), flags=re.IGNORECASE)
    bare = re.sub(r"(?<=\w)[\s_-]+(REF|LE|AVG?)$", "", bare, flags=re.IGNORECASE).strip(" .")
    return _standard().get(bare.lower(), bare) or name


@cache
def montage() -> mne.channels.DigMontage:
    """Return the positions of the 10-05 system."""
    import mne

    # MNE 1.13 renamed this montage, and warns about the old name.
    known = mne.channels.get_builtin_montages()
    return mne.channels.make_standard_montage("colin27_1005" if "colin27_1005" in known else "standard_1005")


@cache
def _standard() -> dict[str, str]:
    """Return lower-case name -> name, for the positions of the 10-05 system and older names such as `T3`."""
    return {name.lower(): name for name in [*montage().ch_names, "Nz"]}
