"""Events of EEG recordings: annotations, codes of stim channels, and marks of bad parts and breaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fne.core.dataset import Finding
from fne.data.eeg.quality import some

if TYPE_CHECKING:
    import mne

Event = tuple[float, float, str]
"""Onset from the start of the recording in seconds, duration in seconds, name."""
_BREAK = re.compile(r"edge( boundary)?|boundary|new segment.*")
"""Lower-case names of breaks: of MNE where it joined recordings, of EEGLAB, of BrainVision."""


def event_list(recording: mne.io.BaseRaw, events: str = "auto") -> list[tuple[float, float, str]]:
    """Return the events of a continuous recording: onset and duration in seconds from the first sample, and name.

    Args:
        recording: recording with annotations or stim channels.
        events: source of the events: `annotations`, the codes of `stim` channels as text, or `auto` for annotations
            where the recording has any, and codes elsewhere.
    """
    return read_events(recording, events)[0]


def read_events(recording: mne.io.BaseRaw, events: str) -> tuple[list[tuple[float, float, str]], list[Finding]]:
    """Return the events as `event_list` does, and findings about codes that were skipped or interpreted."""
    listed, findings = [], list[Finding]()
    if events != "stim":
        first = recording.first_time  # MNE counts onsets from the start of the measurement, which may be cropped
        for note in recording.annotations:
            if not is_gap(note["description"]):
                listed.append((float(note["onset"] - first), float(note["duration"]), str(note["description"])))
    if events == "stim" or (events == "auto" and not listed):
        listed, findings = _codes(recording)
    return sorted(listed), findings


def event_names(epochs: mne.BaseEpochs) -> list[str]:
    """Return the name of each epoch's event."""
    names = {code: name for name, code in epochs.event_id.items()}
    return [names.get(code, str(code)) for code in epochs.events[:, 2].tolist()]


def _codes(recording: mne.io.BaseRaw) -> tuple[list[tuple[float, float, str]], list[Finding]]:
    """Return the events of the stim channels; a channel that combines the others replaces them."""
    names = [n for n, kind in zip(recording.ch_names, recording.get_channel_types(), strict=True) if kind == "stim"]
    names = next(([name] for name in ("STI101", "STI 014") if name in names), names)
    listed, findings = [], list[Finding]()
    for name in names:
        values = np.nan_to_num(recording.get_data(picks=[name])[0])
        largest = np.abs(values).max(initial=0)
        # MNE converted a channel that the file calls EEG from microvolts to volts.
        codes = np.rint(values * (1e6 if 0 < largest < 0.5 else 1)).astype(np.int64) & 0xFFFF  # BioSemi: 16 are codes
        events, told = code_events(codes, name)
        listed += [(float(sample / recording.info["sfreq"]), 0.0, str(code)) for sample, code in events]
        findings += told
    return listed, findings


def code_events(codes: NDArray[np.int64], channel: str) -> tuple[list[tuple[int, int]], list[Finding]]:
    """Return sample and code of each event of a stim channel, and findings about skipped or interpreted codes.

    In general each change to another code is an event. A change that only switches bits off (3 to 1, or 1 to 0) ends a
    pulse and is no event. If the channel has a code for most of the time, however, each code is held until the next
    one, and every change to a code other than zero is an event. Bits that are on in all samples count as zero if the
    channel shows them alone for most of the time; otherwise they are a common part of the held codes.

    Args:
        codes: non-negative code of each sample `[times]`.
        channel: name of the channel for the finding.
    """
    at = np.flatnonzero(np.diff(codes)) + 1
    if not len(at):
        return [], []
    rest = np.bitwise_and.reduce(codes)
    rest = rest if (codes == rest).mean() > 0.5 else 0 * rest
    active = codes & ~rest
    before, after = active[at - 1], active[at]
    switched_off = after & ~before == 0
    between = active[at[0] : at[-1]] != 0  # from the first to the last change
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
    """Return whether an event marks a break or a bad part, as every name that begins with `bad` does for MNE."""
    return _plain(name).startswith("bad") or _is_break(name)


def gaps(events: Iterable[Event]) -> list[Event]:
    """Return the events that mark bad parts and breaks.

    A break has no duration here: what EEGLAB gives as the duration of a break is how much was cut out.
    """
    marks = [event for event in events if is_gap(event[2])]
    return [(onset, 0.0 if _is_break(name) else duration, name) for onset, duration, name in marks]


def breaks(events: Sequence[Event]) -> list[float]:
    """Return the sorted times in seconds at which the recording was interrupted; no filter may reach across them."""
    found = set[float]()
    for onset, duration, name in events:
        if _is_break(name):
            found.add(onset)
        elif _plain(name).startswith("bad_acq_skip"):  # MNE fills these parts with zeros
            found |= {onset, onset + duration}
    return sorted(found)


def taken_for_bad(names: Iterable[str]) -> tuple[Finding, ...]:
    """Return the finding that some events, such as `badge`, count as bad parts although they may be none."""
    counts = Counter(name for name in names if re.match(r"bad[^\W_]", _plain(name)))
    if not counts:
        return ()
    found = f"taken for bad parts of the recording: {some([f'{name} ({count})' for name, count in counts.items()])}"
    remedy = "Rename them if they are trials: MNE takes all that begin with bad for bad parts"
    return (Finding("events", found, "events with other names", remedy, "noted"),)


def _is_break(name: str) -> bool:
    return _BREAK.fullmatch(_plain(name)) is not None


def _plain(name: str) -> str:
    return name.lower().removeprefix("comment/")  # a prefix of BrainVision
