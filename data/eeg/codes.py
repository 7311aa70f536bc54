"""Events in the codes of a stim channel: begins of pulses, or changes of codes that are held. No MNE in here."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from fne.core.dataset import Finding
from fne.data.eeg.quality import some


def code_events(codes: NDArray[np.int64], channel: str) -> tuple[list[tuple[int, int]], list[Finding]]:
    """Return the samples at which the codes of a stim channel begin, with the codes, and what was skipped or assumed.

    Each change to another code is an event, in general. A change that only switches bits off (3 to 1, or 1 to 0) is the
    end of a pulse, and no event. But where the channel has a code for most of the time, its codes are held until the
    next one, and each change to a code other than zero is an event. Bits that are on in all samples count as zero where
    the channel rests with them alone for most of the time; elsewhere held codes have them in common.

    Args:
        codes: code of each sample, none of them negative `[times]`.
        channel: name for the finding.
    """
    at = np.flatnonzero(np.diff(codes)) + 1
    if not len(at):
        return [], []
    rest = np.bitwise_and.reduce(codes)
    rest = rest if (codes == rest).mean() > 0.5 else 0 * rest
    active = codes & ~rest
    before, after = active[at - 1], active[at]
    switched_off = after & ~before == 0
    between = active[at[0] : at[-1]] != 0  # from the first change to the last one
    held = bool(len(at) > 1 and between.mean() > 0.5 and ((before != 0) & (after != 0)).any())
    begins = (after != 0) & (held | ~switched_off)
    told = []
    if active[0]:
        told.append(f"its first code, {codes[0]}, is no event, as the onset was not recorded")
    if held:
        change = f"each change to another code than {rest}" if rest else "each change"
        told.append(f"codes are held until the next, so {change} is an event, and a code that repeats is one event")
    skipped = at[~begins & (codes[at] != 0)]
    if len(skipped) and not held:
        changes = Counter(zip(codes[skipped - 1].tolist(), codes[skipped].tolist(), strict=True)).most_common()
        listed = some([f"{old} to {new} ({count})" for (old, new), count in changes])
        told.append(f"changes that only switch bits off are no events: {listed}")
    findings = []
    if told:
        found, expected = f"stim channel {channel}: {'; '.join(told)}", "pulses that begin and end at 0"
        remedy = "If other events are meant, write them into the file as annotations"
        findings.append(Finding("codes", found, expected, remedy, "noted"))
    return list(zip(at[begins].tolist(), codes[at[begins]].tolist(), strict=True)), findings
