"""Run a group of experiments over seeds, some at a time, and print the table that RESULTS.md holds.

    python benchmarks/run.py mnist5000 --seeds 0-2 --jobs 2 --out runs/bench

Each cell is the `fne train` command printed beside it, for every seed; cells that are split by subjects run every fold
with the first seed instead. Finished runs are kept, unfinished ones are resumed, so a stopped benchmark goes on where
it was; a folder that holds a run with other settings is refused. Every process uses one thread.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fne.watch.tables import grouped, markdown_bytes, markdown_table, read_summary

SMALL = "fne_mnist5000"
CNN = f"{SMALL} model=cnn strategy.subset_size=1 strategy.rounds=500"
MIXED = "strategy.mutation=mixed"
CE = "strategy.loss=cross_entropy"
EEG = "fne_eeg"
NARROW = "model=cnn model.width=[8,16] model.hidden=32"
NARROWER = "model=cnn model.width=[6,12] model.hidden=16"
SHARDS = "data.partition=shards strategy.lr=0.05 strategy.rounds=700"
MANY = "strategy.subset_size=20 strategy.samples_per_node=6"
LARGE = "fne_eeg_40 model.variant=braindecode strategy.population=64"
BY_SUBJECT = "data.split=subject"
RUNS = "eeg_hands"
SHUFFLED = "data.shuffle_labels=true"
SHARED = "strategy.population=40 strategy.subset_size=2 strategy.loss=cross_entropy"
PAIRS = "strategy.population=64 strategy.rounds=1000"
SHARING = "fsi_mnist strategy=fsi_shared strategy.validate_every=0 strategy.penalty=0.002"
ONE_VS_ALL = "model.output=sigmoid data.size=20 data.validation=10"
SGD = "strategy.loss=bce strategy.fraction=1 strategy.lr=0.5"
MLP = "fne_mnist5000 model=mlp model.hidden=[32] data.size=20 strategy.loss=cross_entropy"
ALL_TRIALS = "fne_eeg strategy.loss=nmse"
SITES = "data.partition.subjects_per_node=4 data.partition.mixed=true"

GROUPS: dict[str, dict[str, str]] = {
    "mnist5000": {
        "logistic_paper": SMALL,
        "logistic_mixed": f"{SMALL} {MIXED}",
        "logistic_mixed_ce": f"{SMALL} {MIXED} {CE}",
        "logistic_fedavg": "fedavg_mnist5000",
        "logistic_centralised": "centralised_mnist5000",
        "cnn_fedavg": "fedavg_mnist5000 model=cnn",
        "cnn_paper": CNN,
        "cnn_mixed": f"{CNN} {MIXED}",
        "cnn_mixed_ce": f"{CNN} {MIXED} {CE}",
    },
    "comparisons": {
        "kernelwise": SMALL,
        "halving": f"{SMALL} strategy.crossover=halving",
        "interleave": f"{SMALL} strategy.crossover=interleave",
        "mean": f"{SMALL} strategy.crossover=mean",
        "single_sample": f"{SMALL} strategy.nodes=single_sample",
        "moving_window": f"{SMALL} strategy.nodes=moving_window strategy.window_size=2 strategy.window_every=5",
        "offset": f"{SMALL} strategy.mutation=offset",
        "offset_mean": f"{SMALL} strategy.mutation=offset strategy.crossover=mean",
        "lognormal": f"{SMALL} strategy.mutation=lognormal strategy.sign_flip=0.01",
        "multiplier_off": f"{SMALL} strategy.stagnation=off",
        "multiplier_no_improvement": f"{SMALL} strategy.stagnation=no_improvement",
        "deal": f"{SMALL} strategy.deal=true",
    },
    "mcmahan": {
        "iid": "fedavg_mnist watch.target=0.97",
        "shards": f"fedavg_mnist {SHARDS} watch.target=0.97",
    },
    "mnist": {
        "fedavg_cnn": "fedavg_mnist model=cnn strategy.fraction=0.02 strategy.rounds=300",
        "fne_cnn": "fne_mnist",
        "fne_logistic": "fne_mnist model=logistic strategy.rounds=2000 watch.every=10",
        "fedavg_logistic": "fedavg_mnist model=logistic strategy.fraction=0.02 strategy.rounds=2000 watch.every=10",
    },
    "eeg": {
        "fne_eeg": EEG,
        "fne_eeg_40": "fne_eeg_40",
        "centralised_eeg": "centralised_eeg",
        "centralised_eeg_8": "centralised_eeg model.filters=8",
        "fedavg_eeg": "fedavg_eeg",
        "fedavg_eeg_8": "fedavg_eeg model.filters=8",
        "fne_sites": f"{EEG} {SITES} strategy.subset_size=3 strategy.samples_per_node=20",
        "fedavg_sites": f"fedavg_eeg {SITES}",
    },
    "eeg_long": {"fne_eeg_5000": f"{EEG} strategy.rounds=5000 watch.every=5"},
    "eeg_comparisons": {  # beside fne_eeg of the group eeg
        "halving": f"{EEG} strategy.crossover=halving",
        "interleave": f"{EEG} strategy.crossover=interleave",
        "mean": f"{EEG} strategy.crossover=mean",
        "single_sample": f"{EEG} strategy.nodes=single_sample",
        "moving_window": f"{EEG} strategy.nodes=moving_window strategy.window_size=10",
        "all_nodes": f"{EEG} strategy.nodes=all strategy.samples_per_node=3",
        "one_subject": f"{EEG} strategy.subset_size=1 strategy.samples_per_node=0",
        "offset": f"{EEG} strategy.mutation=offset",
        "mixed": f"{EEG} {MIXED}",
        "lognormal": f"{EEG} strategy.mutation=lognormal strategy.sign_flip=0.01",
        "multiplier_off": f"{EEG} strategy.stagnation=off",
        "batch_statistics": f"{EEG} evaluation.batch_norm=batch",
        "server_statistics": f"{EEG} evaluation.batch_norm=server",
    },
    "eeg_subject": {
        "fne_eeg": f"{EEG} {BY_SUBJECT}",
        "fedavg_eeg": f"fedavg_eeg {BY_SUBJECT}",
        "fedavg_sites": f"fedavg_eeg {SITES} {BY_SUBJECT}",
        "centralised_eeg": f"centralised_eeg {BY_SUBJECT}",
        "centralised_eeg_8": f"centralised_eeg model.filters=8 {BY_SUBJECT}",
    },
    "eeg_leak": {
        "control_trial": "eeg_leak_control",
        **{f"control_subject_{n}": f"eeg_leak_control {BY_SUBJECT} data.label_seed={n}" for n in range(5)},
        "control_trial_8": f"centralised_eeg model.filters=8 {SHUFFLED}",
        "es_trial": f"es_eeg {SHUFFLED}",
        "fne_trial": f"{EEG} {SHUFFLED}",
        "fne_subject": f"{EEG} {SHUFFLED} {BY_SUBJECT}",
    },
    "es": {
        "es_eeg": "es_eeg",
        "snes_eeg": "snes_eeg",
        "es_mnist5000": "es_mnist5000",
        "snes_mnist5000": f"es_mnist5000 strategy=snes {SHARED} strategy.rounds=3000 strategy.eta_final=0.1",
        "sep_cma_mnist5000": f"es_mnist5000 strategy=sep_cma {SHARED} strategy.rounds=1000",
        "de_mnist5000": f"es_mnist5000 strategy=de {SHARED} strategy.rounds=1000",
        "es_fitness": f"es_mnist5000 {PAIRS}",
        "es_levels": f"es_mnist5000 {PAIRS} strategy.uplink=levels",
        "es_ranks": f"es_mnist5000 {PAIRS} strategy.uplink=ranks",
        "es_sign": f"es_mnist5000 {PAIRS} strategy.uplink=sign",
    },
    "es_subject": {"es_eeg": f"es_eeg {BY_SUBJECT}", "snes_eeg": f"snes_eeg {BY_SUBJECT}"},
    "es_long": {
        "es_eeg_10min": "es_eeg strategy.rounds=20000",
        "snes_eeg_10min": "snes_eeg strategy.rounds=11000 watch.every=10",
    },
    "es_cnn": {"es_cnn": "es_mnist5000_cnn", "fedavg_cnn": f"fedavg_mnist5000 {NARROW}"},
    "es_mnist": {
        "es_mnist": "es_mnist",
        "es_mnist_sign": f"es_mnist strategy.uplink=sign strategy.population=256 strategy.rounds=1380 {MANY}",
        "fedavg_same": f"fedavg_mnist {SHARDS} {NARROWER} watch.target=0.954",
    },
    "eeg_files": {  # folds 0-3, each with every seed
        "fne_runs": RUNS,
        "es_runs": f"{RUNS} strategy=es strategy.rank=1 strategy.population=64 strategy.rounds=300 strategy.sigma=0.2 "
        "strategy.lr=0.05 strategy.loss=cross_entropy strategy.validate_every=10 evaluation.tiles=joined",
        "fedavg_runs": f"{RUNS} strategy=fedavg strategy.rounds=100 strategy.optimizer=adam strategy.lr=0.001 "
        "strategy.batch_size=16",
        "centralised_runs": f"{RUNS} strategy=centralised strategy.rounds=100 strategy.optimizer=adam "
        "strategy.lr=0.001 strategy.batch_size=16",
    },
    "fsi": {
        "fsi_one_class": "fsi_mnist",
        "fsi_iid": "fsi_mnist data.partition=iid",
        "fsi_best": "fsi_mnist strategy.changes=best",
        "shared_one_class": SHARING,
        "shared_iid": f"{SHARING} data.partition=iid",
        "fedavg_one_class": f"fedavg_mnist5000 {ONE_VS_ALL} {SGD} data.partition=one_class",
        "fedavg_iid": f"fedavg_mnist5000 {ONE_VS_ALL} {SGD}",
        "fsi_quadratic": "fsi_mnist model.features=quadratic model.reach=1",
    },
    "fsi_networks": {  # equal evaluations, all samples of all nodes
        "fsi_mlp": MLP.replace("strategy.loss", "strategy=fsi strategy.rounds=501 strategy.loss"),
        "shared_mlp": MLP.replace("strategy.loss", "strategy=fsi_shared strategy.rounds=501 strategy.loss"),
        "fne_mlp": f"{MLP} strategy.population=20 strategy.rounds=501 strategy.nodes=all",
        "fsi_eeg": ALL_TRIALS.replace("strategy.loss", "strategy=fsi strategy.rounds=101 strategy.loss"),
        "shared_eeg": ALL_TRIALS.replace("strategy.loss", "strategy=fsi_shared strategy.rounds=101 strategy.loss"),
        "fne_eeg": f"{ALL_TRIALS} strategy.population=20 strategy.rounds=101 strategy.nodes=all "
        "strategy.samples_per_node=0",
    },
    "lineage": {
        "half_of_the_nodes": f"{LARGE} strategy.rounds=100",
        "one_of_20_nodes": f"{LARGE} strategy.rounds=500 strategy.subset_size=1",
        "half_as_tensors": f"{LARGE} strategy.rounds=10 wire=tensors",
    },
}


def command(cell: str, name: str, run: str, folder: Path) -> list[str]:
    """Return the command of one run (`seed=1`); a run that is there already is resumed, if its settings are these."""
    fne = [sys.executable, "-m", "fne.cli.main", "train"]
    settings = [f"name={name}", *run.split(), "engine.threads=1", "watch.tensorboard=false"]
    where = "--resume" if (folder / "config.yaml").exists() else "--out"
    return [*fne, *cell.split(), *settings, where, str(folder), "--quiet"]


def run(job: tuple[str, str, str, Path]) -> Path:
    """Run one cell once; a finished run with these settings is kept."""
    cell, name, which, folder = job
    new = not (folder / "summary.json").exists()
    done = subprocess.run(command(cell, name, which, folder), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} {which}: exit status {done.returncode}\n{done.stderr}")
    if new:
        print(f"{name} {which} done", file=sys.stderr, flush=True)
    return folder


def numbers(text: str) -> range:
    """Return the numbers of `first-last`."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def runs(cell: str, seeds: range, folds: range) -> dict[str, str]:
    """Return the settings of each run of a cell by the end of its folder's name."""
    if cell.startswith(RUNS):
        return {f"s{seed}-f{fold}": f"seed={seed} data.fold={fold}" for seed in seeds for fold in range(4)}
    if BY_SUBJECT not in cell:
        return {f"s{seed}": f"seed={seed}" for seed in seeds}
    return {f"s{seeds[0]}-f{fold}": f"seed={seeds[0]} data.fold={fold}" for fold in folds}


def main() -> None:
    """Run one group and print its commands and its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=sorted(GROUPS))
    parser.add_argument("--seeds", default="0-2", help="first-last")
    parser.add_argument("--folds", default="0-4", help="first-last, for cells that are split by subjects")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--only", default="", help="comma-separated cells")
    parser.add_argument("--bytes", action="store_true", help="print a second table: bytes a node over the run")
    arguments = parser.parse_args()
    seeds, folds = numbers(arguments.seeds), numbers(arguments.folds)
    wanted = arguments.only.split(",") if arguments.only else list(GROUPS[arguments.group])
    cells = {name: GROUPS[arguments.group][name] for name in wanted}
    jobs = [
        (cell, name, settings, arguments.out / arguments.group / f"{name}-{end}")
        for name, cell in cells.items()
        for end, settings in runs(cell, seeds, folds).items()
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        folders = list(pool.map(run, jobs))
    for name, cell in cells.items():
        folded = f" --folds {arguments.folds}" if BY_SUBJECT in cell else ""
        folded = f" --seeds {arguments.seeds} --folds 0-3" if cell.startswith(RUNS) else folded
        print(f"- `{name}`: `fne train {cell}{folded}`")
    print()
    summaries = grouped([read_summary(folder) for folder in folders])
    print(markdown_table(summaries, processor_time=True))
    if arguments.bytes:
        print(markdown_bytes(summaries))


if __name__ == "__main__":
    main()
