"""Channels and references of EEG recordings: taken by name, averaged over what they should be."""

from __future__ import annotations

from typing import Any

import mne
import numpy as np
import pytest

from fne.core.dataset import FileError
from tests.data.eeg.signal_parts import NAMES, RAMP, noise, recorded, refusal, run, told


def test_channels_are_taken_by_name_in_the_order_that_is_asked_for() -> None:
    raw = recorded(RAMP, names=NAMES[::-1])
    windows = run(raw, channels=("Fz", "Oz", "P4"))
    assert np.rint(windows.x[0, :, 0]).tolist() == [7100, 4100, 100]
    assert told(windows) == []  # of the order the contract tells


def test_the_recording_stays_as_it_is() -> None:
    raw = recorded(noise())
    before, annotations = raw.get_data(), raw.annotations.copy()
    run(raw, low=2.0, high=20.0, reference="average", rate=50.0, moving=True, channels=("Cz", "Fz"))
    assert np.array_equal(raw.get_data(), before)
    assert raw.annotations == annotations
    assert raw.ch_names == list(NAMES)


def test_references() -> None:
    values = noise()
    windows = run(recorded(values), reference="average")
    np.testing.assert_allclose(windows.x[0], (values - values.mean(0))[:, 100:200], atol=1e-4)
    theirs = mne.set_eeg_reference(recorded(values), "average", verbose="ERROR")[0].get_data() * 1e6
    np.testing.assert_allclose(windows.x[0], theirs[:, 100:200], atol=1e-4)
    others = values[:3] - values[6:8].mean(0)
    windows = run(recorded(values), reference=("P3", "P4"), channels=NAMES[:3])
    np.testing.assert_allclose(windows.x[0], others[:, 100:200], atol=1e-4)
    windows = run(recorded(values), reference=("Cz",))
    assert not windows.x[:, 1].any()
    assert told(windows) == [("noted", "reference")]


def test_only_eeg_channels_count_for_the_average_and_are_changed_by_it() -> None:
    values = noise(4)
    raw = recorded(values, types=["eeg", "eeg", "eeg", "eog"])
    windows = run(raw, reference="average")
    np.testing.assert_allclose(windows.x[0, :3], (values[:3] - values[:3].mean(0))[:, 100:200], atol=1e-4)
    np.testing.assert_allclose(windows.x[0, 3], values[3, 100:200], atol=1e-4)
    np.testing.assert_allclose(run(raw, reference=("Oz",)).x[0, 0], (values[0] - values[3])[100:200], atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"reference": ("Pzz",)}, "channel 'Pzz' of data.reference does not exist, did you mean 'Pz'?"),
        ({"reference": ("Oz",), "bad_channels": "zero"}, "channel Oz of data.reference is bad"),
    ],
)
def test_a_reference_that_cannot_be(settings: dict[str, Any], found: str) -> None:
    values = noise()
    values[3] = 0
    finding = refusal(recorded(values), **settings)
    assert finding.kind == "reference"
    assert finding.found.startswith(found)


def test_the_average_is_over_all_good_eeg_channels_of_the_file() -> None:
    values = noise()
    values[4], values[5, 17], values[6] = 3.0, np.nan, 1000 * values[6]
    types = ["eeg"] * 7 + ["eog"]
    expected = values[:2] - values[:4].mean(0)  # C3 is flat, C4 has NaN, P3 is called bad by the file, P4 is an EOG
    raw = recorded(values, types=types, bads=["P3"])
    for policy in ("refuse", "interpolate", "zero"):
        windows = run(raw, reference="average", channels=("Fz", "Cz"), bad_channels=policy)
        assert windows.findings == ()
        np.testing.assert_allclose(windows.x[0], expected[:, 100:200], atol=1e-4)
    raw = recorded(np.nan_to_num(values), types=types, bads=["C3", "C4", "P3"])
    theirs = mne.set_eeg_reference(raw, "average", verbose="ERROR")[0].get_data(["Cz", "Fz"]) * 1e6
    found = run(raw, reference="average", channels=("Cz", "Fz")).x[0]
    np.testing.assert_allclose(found, theirs[:, 100:200], atol=1e-4)
    # A chosen one that is bad follows the policy, which for the average means that it counts or does not.
    with pytest.raises(FileError, match="C3: flat"):
        run(raw, reference="average", channels=("Fz", "C3", "Pz"))
    zeroed = run(raw, reference="average", channels=("Fz", "C3", "Pz"), bad_channels="zero").x[0]
    np.testing.assert_allclose(zeroed[0], (values[0] - values[:4].mean(0))[100:200], atol=1e-4)
    assert not zeroed[1].any()
    # Not for electrodes of another type, which the file's EEG has nothing to do with.
    other = recorded(noise(4), types=["seeg", "seeg", "eeg", "eeg"])
    found = run(other, reference="average", channels=("Fz", "Cz")).x[0]
    np.testing.assert_allclose(found[0], ((noise(4)[0] - noise(4)[1]) / 2)[100:200], atol=1e-4)
    finding = refusal(recorded(noise(3), types=["eeg", "eog", "misc"]), reference="average", channels=("Fz",))
    assert finding.found.startswith("data.reference = average of 1 channel")
