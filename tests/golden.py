"""Golden runs: digests of what small runs yield, stored in golden.json, so that no change of a result goes unnoticed.

    python -m tests.golden                  # compare every run with what is stored, on this machine
    python -m tests.golden fne es --renew   # store these runs anew; CONTRIBUTING.md says when that is allowed

Each run has a digest of its resolved config, of its history without the measured seconds, and of the files that hold
its result. A config is the same on every machine. The last bits of numbers are not, because processors differ in the
order in which they add. Therefore the other digests are stored by processor family, and the runs use the most common
kernels, with which families differ less. On a family without digests the configs alone are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_name("golden.json")
RESULTS = ("solution.json", "front.csv", "model.safetensors")
"""Files of a run folder that hold a result."""
KERNELS = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Nehalem", "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41",
}  # fmt: skip
"""Environment in which the kernels of torch do not depend on what the processor could do besides."""
IMAGES, NUMBERS = (str(Path(__file__).parent / "plugins" / f"small_{what}.py") for what in ("images", "numbers"))

Config = dict[str, Any]
Digests = dict[str, str]


def family() -> str:
    """Return the processor family whose digests apply, such as `x86_64 AuthenticAMD avx2 torch 2.14`."""
    import torch

    vendor, widest = "unknown", "unknown"
    if Path("/proc/cpuinfo").exists():
        text = Path("/proc/cpuinfo").read_text()
        vendor = next(
            (line.split(":")[1].strip() for line in text.splitlines() if line.startswith("vendor_id")), vendor
        )
        widest = next((flag for flag in ("avx512f", "avx2") if f" {flag} " in text), widest)
    return f"{platform.machine()} {vendor} {widest} torch {'.'.join(torch.__version__.split('.')[:2])}"


# ------------------------------------------------------------------------------------------------ the runs
def runs() -> dict[str, Config]:
    """Return the config of every golden run by its name; each takes about half a second."""
    return dict([*learning(), *searching()])


def learning() -> Iterator[tuple[str, Config]]:
    """Yield runs of every learning strategy, then of codecs, secure sums, data sets and model families."""
    watch = {"tensorboard": False, "checkpoint_every": 2}
    base: Config = {"data": {"name": "toy", "nodes": 5}, "model": {"name": "mlp", "hidden": [6]}, "watch": watch}
    candidates = {"population": 6, "rounds": 3}
    tradeoffs = {"population": 3, "generations": 1, "rounds_per_evaluation": 1}
    strategies: dict[str, Config] = {
        "fne": {"population": 8, "parents": 4, "rounds": 4, "subset_size": 4, "mutation": "mixed", "elites": 1},
        "es": {"population": 8, "rounds": 4, "subset_size": 5}, "snes": candidates, "sep_cma": candidates,
        "de": candidates, "fsi": {"rounds": 4}, "fsi_shared": {"rounds": 4},
        "fedavg": {"rounds": 3, "fraction": 1.0}, "fedprox": {"rounds": 2}, "centralised": {"rounds": 2},
        "dp_fedavg": {"rounds": 2, "fraction": 1.0}, "dp_sgd": {"rounds": 1, "rate": 0.3},
        "fed_moeac": tradeoffs, "nsga2": tradeoffs,
    }  # fmt: skip

    def with_strategy(name: str, **settings: Any) -> Config:
        return {**base, "strategy": {"name": name, **strategies[name], **settings}}

    for name in strategies:
        yield name, with_strategy(name)
    for crossover, mutation in (("halving", "multiply"), ("interleave", "offset"), ("mean", "lognormal")):
        yield f"fne {crossover} {mutation}", with_strategy("fne", crossover=crossover, mutation=mutation)
    yield "fne moving_window", with_strategy("fne", nodes="moving_window", selection="tournament")
    yield "fne deal", with_strategy("fne", deal=True, selection="truncation")
    numbers = {"plugins": [NUMBERS], "data": {"name": "small_numbers", "nodes": 4}}
    linear = {"model": {"name": "logistic", "output": "linear"}}
    yield "fsi exact", {**with_strategy("fsi", loss="mse", exact_reduction=True), **numbers, **linear}
    yield "fed_moeac literal", with_strategy("fed_moeac", order="literal", noise="coordinate", inherit="first_parent")
    for name in ("fne", "es", "de"):
        yield f"{name} lineage", {**with_strategy(name), "wire": "lineage"}
    for uplink in ("levels", "ranks", "sign"):
        yield f"es {uplink}", with_strategy("es", rank=1, uplink=uplink)
    yield "es framed", {**with_strategy("es"), "engine": {"name": "framed"}}
    unreliable = {"name": "local", "quorum": 2, "away": 0.4}
    yield "fedavg away", {**with_strategy("fedavg"), "engine": unreliable}
    for name in ("fne", "es", "fsi", "fedavg", "dp_fedavg"):
        yield f"{name} secure", {**with_strategy(name), "secure": True}
    yield "fedavg secure clip", {**with_strategy("fedavg"), "secure": "clip"}
    yield "fedavg policy", {**with_strategy("dp_fedavg"), "policy": {"epsilon": 1e6}}

    recordings: Config = {"name": "toy", "problem": "eeg", "times": 240, "samples": 400, "nodes": 4}
    evolved = {"name": "fne", "population": 6, "parents": 3, "rounds": 2}
    averaged = {"name": "fedavg", "rounds": 2, "fraction": 1.0}
    images = {"plugins": [IMAGES], "data": {"name": "small_images", "nodes": 4}}
    for partition in ("iid", "dirichlet", "one_class", "quantity", "shards", "subject"):
        data = {**recordings, "partition": {"name": partition}}
        if partition in ("subject", "one_class"):
            data["nodes"] = None if partition == "subject" else 2
        yield f"partition {partition}", {**base, "data": data, "model": {"name": "logistic"}, "strategy": averaged}
    for name, settings in {"shallow_convnet": {"filters": 4}, "eegnet": {}}.items():
        for strategy in (evolved, averaged):
            config = {**base, "data": recordings, "model": {"name": name, **settings}, "strategy": strategy}
            yield f"{name} {strategy['name']}", config
    for name, settings in {"cnn": {}, "vgg": {"blocks": [[4], [4]], "groups": 2}}.items():
        for strategy in (evolved, averaged):
            yield (
                f"{name} {strategy['name']}",
                {**base, **images, "model": {"name": name, **settings}, "strategy": strategy},
            )
    yield "logistic fne", {**base, "model": {"name": "logistic"}, "strategy": evolved}


def searching() -> Iterator[tuple[str, Config]]:
    """Yield runs of every search, on one test function or one suite each, and of every test function and suite."""
    watch = {"tensorboard": False}
    bowl: Config = {"problem": {"name": "ellipsoid", "dim": 3, "nodes": 5}, "watch": watch}
    front: Config = {"problem": {"name": "dtlz", "number": 2, "objectives": 3, "dim": 4, "nodes": 5}, "watch": watch}
    few = {"rounds": 2, "generations": 3, "initial": 15}
    fdd_ea = {"rounds": 3, "participation": 1.0, "generations": 10}
    for name, settings in {
        "fdd_ea": fdd_ea, "fdd_ea_plus": {"rounds": 6, "generations": 5}, "dycors": {}, "gp_lcb": {"evaluations": 3},
        "rcga": {}, "latin_hypercube": {},
    }.items():  # fmt: skip
        yield name, {**bowl, "strategy": {"name": name, **settings}}
    for acquisition in ("l", "g"):
        settings = {
            **fdd_ea,
            "acquisition": acquisition,
            "reading": "literal",
            "queries": "distinct",
            "finals": "literal",
        }
        yield f"fdd_ea {acquisition} literal", {**bowl, "strategy": {"name": "fdd_ea", **settings}}
    yield "fdd_ea_mo", {**front, "strategy": {"name": "fdd_ea_mo", **few}}
    yield "fdd_ea_dh", {**front, "secure": True, "strategy": {"name": "fdd_ea_dh", **few}}
    yield "fdd_ea_dh literal", {**front, "strategy": {"name": "fdd_ea_dh", "mode": "literal", **few}}
    for name in ("ackley", "griewank", "rastrigin", "rosenbrock"):
        problem = {"name": name, "dim": 3, "nodes": 5, "shift": 0.2}
        yield f"problem {name}", {**bowl, "problem": problem, "strategy": {"name": "rcga"}}
    for number in range(1, 8):
        problem = {**front["problem"], "number": number}
        yield f"problem dtlz{number}", {**front, "problem": problem, "strategy": {"name": "fdd_ea_mo", **few}}
    for number in range(1, 10):
        problem = {"name": "wfg", "number": number, "dim": 8, "nodes": 5}
        yield f"problem wfg{number}", {**front, "problem": problem, "strategy": {"name": "fdd_ea_mo", **few}}


# ------------------------------------------------------------------------------------------------ their digests
def digests(config: Mapping[str, Any], folder: Path) -> Digests:
    """Return the digests of a run made in a new folder."""
    from fne import train

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of runs too short to be good
        train(dict(config), out=folder)
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    history = [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]
    resolved = (folder / "config.yaml").read_text().replace(str(Path(__file__).parent), "tests")
    found = {"config": sha256(resolved.encode()), "history": sha256(json.dumps(history, sort_keys=True).encode())}
    return found | {name: sha256((folder / name).read_bytes()) for name in RESULTS if (folder / name).exists()}


def sha256(content: bytes) -> str:
    """Return the first 16 digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def stored() -> dict[str, Any]:
    """Return `{"configs": {run: digest}, "results": {family: {run: {file: digest}}}}` as it is stored."""
    found: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {"configs": {}, "results": {}}
    return found


def differences(made: Mapping[str, Digests], of_family: str) -> list[str]:
    """Return, in words, where the digests of runs differ from those stored."""
    known, wrong = stored(), []
    results = known["results"].get(of_family, {})
    for run, files in made.items():
        expected = {"config": known["configs"].get(run)} | (results.get(run, {}) if results else {})
        for file in sorted(set(expected) | (set(files) if results else {"config"})):
            if files.get(file) != expected.get(file):
                wrong.append(f"{run}: {file} has digest {files.get(file)}, stored is {expected.get(file)}")
    return wrong


def make(names: Sequence[str]) -> dict[str, Digests]:
    """Return the digests of runs, made in one process with the common kernels."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", "--print", *names], env=os.environ | KERNELS, check=False,
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the golden runs ended with status {done.returncode}")
    made: dict[str, Digests] = json.loads(done.stdout)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare runs with what is stored, store them anew, or print their digests."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", nargs="*", help="names of runs; none: all")
    parser.add_argument("--renew", action="store_true", help="store the digests instead of comparing them")
    parser.add_argument("--print", action="store_true", help="print the digests, made in this very process")
    chosen = parser.parse_args(arguments)
    known = runs()
    if unknown := [name for name in chosen.runs if name not in known]:
        parser.error(f"no golden run is called {unknown[0]!r}; there are {', '.join(known)}")
    names = chosen.runs or list(known)
    if chosen.print:
        with tempfile.TemporaryDirectory() as folder:
            made = {name: digests(known[name], Path(folder, str(i))) for i, name in enumerate(names)}
        print(json.dumps(made))
        return 0
    made, own = make(names), family()
    if not chosen.renew:
        wrong = differences(made, own)
        print("\n".join(wrong) or f"{len(made)} runs are as stored ({own})")
        return 1 if wrong else 0
    content = stored()
    results = content["results"].setdefault(own, {})
    for name, files in made.items():
        content["configs"][name] = files.pop("config")
        results[name] = files
    for part in (content["configs"], *content["results"].values()):
        for name in set(part) - set(known):  # a run that is gone
            del part[name]
    STORED.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    print(f"stored {len(made)} runs for {own} in {STORED.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
