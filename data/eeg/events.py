"""Events of EEG recordings: annotations, codes of stim channels, and marks of bad parts and breaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fne.core.findings import Finding
from fne.data.eeg.quality import some

if TYPE_CHECKING:
    import mne

Event = tuple[float, float, str]
"""Onset from the start of the recording and duration, both in seconds, and name."""
_BREAK = re.compile(r"edge( boundary)?|boundary|new segment.*")
"""Names of breaks in lower case: MNE's where it joined recordings, EEGLAB's, BrainVision's."""


def event_list(recording: mne.io.BaseRaw, events: str = "auto") -> list[tuple[float, float, str]]:
    """Return onset and duration in seconds, from the first sample on, and name of each event of a continuous recording.

    Args:
        recording: with annotations or stim channels.
        events: `annotations`, codes of the `stim` channels as text, or `auto`: annotations where there are any.
    """
    return read_events(recording, events)[0]


def read_events(recording: mne.io.BaseRaw, events: str) -> tuple[list[tuple[float, float, str]], list[Finding]]:
    """Return what `event_list` returns, and what was skipped or assumed about codes of stim channels."""
    listed, findings = [], list[Finding]()
    if events != "stim":
        first = recording.first_time  # MNE counts onsets from the begin of the measurement, which may be cut away
        for note in recording.annotations:
            if not is_gap(note["description"]):
                listed.append((float(note["onset"] - first), float(note["duration"]), str(note["description"])))
    if events == "stim" or (events == "auto" and not listed):
        listed, findings = _codes(recording)
    return sorted(listed), findings


def event_names(epochs: mne.BaseEpochs) -> list[str]:
    """Return the event's name of each epoch."""
    names = {code: name for name, code in epochs.event_id.items()}
    return [names.get(code, str(code)) for code in epochs.events[:, 2].tolist()]


def _codes(recording: mne.io.BaseRaw) -> tuple[list[tuple[float, float, str]], list[Finding]]:
    """Return the events of the stim channels; a channel that combines the others stands for all."""
    names = [n for n, kind in zip(recording.ch_names, recording.get_channel_types(), strict=True) if kind == "stim"]
    names = next(([name] for name in ("STI101", "STI 014") if name in names), names)
    listed, findings = [], list[Finding]()
    for name in names:
        values = np.nan_to_num(recording.get_data(picks=[name])[0])
        largest = np.abs(values).max(initial=0)
        # A channel that the file calls EEG went from microvolts to volts.
        codes = np.rint(values * (1e6 if 0 < largest < 0.5 else 1)).astype(np.int64) & 0xFFFF  # BioSemi: 16 are codes
        events, told = code_events(codes, name)
        listed += [(float(sample / recording.info["sfreq"]), 0.0, str(code)) for sample, code in events]
        findings += told
    return listed, findings


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


# ------------------------------------------------------------------------------------------------ bad parts and breaks
def is_gap(name: str) -> bool:
    """Whether an event marks a break, or a bad part: for MNE all do that begin with `bad`, also `badge`."""
    return _plain(name).startswith("bad") or _is_break(name)


def gaps(events: Iterable[Event]) -> list[Event]:
    """Return the events that mark bad parts and breaks.

    A break has no duration here: what EEGLAB gives as the duration of a break is how much was cut out.
    """
    marks = [event for event in events if is_gap(event[2])]
    return [(onset, 0.0 if _is_break(name) else duration, name) for onset, duration, name in marks]


def breaks(events: Sequence[Event]) -> list[float]:
    """Return where the recording was interrupted, in seconds, sorted: filters must not reach across."""
    found = set[float]()
    for onset, duration, name in events:
        if _is_break(name):
            found.add(onset)
        elif _plain(name).startswith("bad_acq_skip"):  # MNE gives zeros there
            found |= {onset, onset + duration}
    return sorted(found)


def taken_for_bad(names: Iterable[str]) -> tuple[Finding, ...]:
    """Return the finding that events are taken for bad parts which may be none, such as `badge`."""
    counts = Counter(name for name in names if re.match(r"bad[^\W_]", _plain(name)))
    if not counts:
        return ()
    found = f"taken for bad parts of the recording: {some([f'{name} ({count})' for name, count in counts.items()])}"
    remedy = "Rename them if they are trials: MNE takes all that begin with bad for bad parts"
    return (Finding("events", found, "events with other names", remedy, "noted"),)


def _is_break(name: str) -> bool:
    return _BREAK.fullmatch(_plain(name)) is not None


def _plain(name: str) -> str:
    return name.lower().removeprefix("comment/")  # which BrainVision puts before them
