"""Table of metrics: every figure of a step in `history.jsonl` and every field of a run's `summary.json`.

The order of keys in the history, the tags in TensorBoard, the columns of the tables of runs and the lists of fields in
docs/config.md all come from this table. A strategy may give metrics that the table does not name: the history sorts
them in among those that are in order of name, and TensorBoard shows their numbers as `method/NAME`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

UNITS = (
    "", "number", "fraction", "loss", "objective", "initial standard deviations", "steps", "rounds", "nodes",
    "samples", "individuals", "points", "snapshots", "bytes", "seconds", "processor seconds",
)  # fmt: skip
"""Units of metrics; "" where no number is measured, `objective` for that of the problem's objective."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure of a step, or one field of a summary.

    Args:
        name: key in `history.jsonl` or `summary.json`.
        meaning: phrase for docs/config.md, in Markdown.
        unit: one of `UNITS`; of a list or a mapping the unit of its numbers.
        sense: which values are better; "" where neither is.
        kind: what the value is; any value may also be null.
        strategies: the only strategies that give the metric; empty where the metric belongs to no strategy.
        tag: tag in TensorBoard, `group/title`; "" keeps the metric out of TensorBoard.
        column: title of its column in the table of runs; "": no column.
        bytes_column: title of its column in the table of bytes; "": no column.
    """

    name: str
    meaning: str
    unit: str = ""
    sense: Literal["less", "more", ""] = ""
    kind: Literal["number", "text", "flag", "list", "mapping"] = "number"
    strategies: tuple[str, ...] = ()
    tag: str = ""
    column: str = ""
    bytes_column: str = ""

    @property
    def group(self) -> str:
        """Group of the tag in TensorBoard, such as `traffic`."""
        return self.tag.partition("/")[0]


def _each(names: str, *, tag: str = "", **shared: Any) -> Iterator[Metric]:
    """Yield a metric for each name, all with the same properties; `*` in the tag stands for the name."""
    for name in names.split():
        yield Metric(name=name, tag=tag.replace("*", name), **shared)


_TRADEOFFS = ("fed_moeac", "nsga2")
_FRONTS = ("fdd_ea_dh", "fdd_ea_mo")
_SURROGATES = ("fdd_ea", "fdd_ea_plus")
_PER_RUN = ", where `strategy.runs` is above 1"

# ------------------------------------------------------------------------------------------------ steps
_FIRST = (
    Metric(name="step", unit="steps", meaning="steps taken, from 1"),
    Metric(name="round", unit="rounds", tag="time/round",
           meaning="round or generation, from 1; in a search the number of queries, from 0"),
    Metric(name="evaluations", unit="individuals", tag="time/evaluations",
           meaning="individuals evaluated since the start, each once however many nodes took part; null for the "
                   "gradient baselines"),
    Metric(name="best_value", unit="objective", sense="less", tag="search/best_value",
           meaning="simulated search for one objective: least value that any node has measured so far, without noise"),
    Metric(name="loss_best", unit="loss", sense="less", tag="fitness/best",
           meaning="least loss in this step's population, on this step's nodes; the gradient baselines give their "
                   "training loss"),
    Metric(name="loss_mean", unit="loss", sense="less", tag="fitness/mean",
           meaning="mean of the finite losses of that population; the gradient baselines give their training loss"),
    Metric(name="loss_worst", unit="loss", sense="less", tag="fitness/worst",
           meaning="largest finite loss of that population"),
    Metric(name="accuracy_validation", unit="fraction", sense="more", tag="validation/accuracy",
           meaning="accuracy of this step's fittest or global model on the validation part; null for regression, and "
                   "in steps without validation (`strategy.validate_every`)"),
    Metric(name="nonfinite", unit="individuals", sense="less", tag="population/nonfinite",
           meaning="individuals with a NaN or infinite fitness in this step"),
    Metric(name="failures", kind="mapping", sense="less", tag="nodes/failures",
           meaning="node -> reason, for nodes that failed, refused, declined or had left in this step, and for nodes "
                   "whose answer was unusable; TensorBoard shows their number"),
    *_each("bytes_down bytes_up", unit="bytes", sense="less", tag="traffic/*",
           meaning="encoded frames of this step, total over the addressed nodes"),
    *_each("bytes_down_max bytes_up_max", unit="bytes", sense="less",
           meaning="encoded frames of this step, the node with the most"),
    *_each("payload_down payload_up", unit="bytes", sense="less", tag="traffic/*",
           meaning="tensors of this step without message heads, total over the addressed nodes"),
    *_each("payload_down_max payload_up_max", unit="bytes", sense="less",
           meaning="tensors of this step without message heads, the node with the most"),
    Metric(name="catch_up", unit="bytes", sense="less",
           meaning="part of `bytes_down` that brought late nodes up to this step; 0 except with `wire: lineage`"),
    Metric(name="snapshots", unit="snapshots", sense="less",
           meaning="whole states that this step sent to late nodes; 0 except with `wire: lineage`"),
    *_each("bytes_down_per_node bytes_down_per_node_max bytes_up_per_node bytes_up_per_node_max",
           unit="bytes", sense="less", tag="traffic/*",
           meaning="encoded frames of a node since the start of the run: mean over all nodes, and (`_max`) the node "
                   "with the most; a node that received no request counts as zero; null where the method is not "
                   "federated"),
    *_each("payload_down_per_node payload_down_per_node_max payload_up_per_node payload_up_per_node_max",
           unit="bytes", sense="less", tag="traffic/*", meaning="the same for tensors without message heads"),
    *_each("catch_up_per_node catch_up_per_node_max", unit="bytes", sense="less", tag="traffic/*",
           meaning="the same for the part of the encoded bytes down that brought late nodes up to a step"),
    Metric(name="snapshots_total", unit="snapshots", sense="less", tag="traffic/snapshots_total",
           meaning="whole states that were sent to late nodes since the start of the run"),
    Metric(name="seconds", unit="seconds", sense="less", tag="time/seconds",
           meaning="wall time of the step's request, the nodes' work and the update; callbacks not included"),
)  # fmt: skip
"""Metrics that open a line of the history, in this order."""

_BY_NAME = (
    Metric(name="acquisition", unit="objective", strategies=_SURROGATES, tag="search/acquisition",
           meaning="acquisition at the new query, mean over runs"),
    Metric(name="alpha", unit="number", strategies=("fsi",), tag="method/alpha",
           meaning="`alpha` of the particles, mean over models and swarms; see [FSI](fsi.md#metrics)"),
    Metric(name="best_values", unit="objective", sense="less", kind="list",
           meaning=f"`best_value` of each run{_PER_RUN}"),
    Metric(name="clipped", unit="number", sense="less", tag="method/clipped",
           meaning="numbers that `secure: clip` clipped in this step; see "
                   "[Secure sums](secure.md#what-the-history-has)"),
    Metric(name="communication_best", unit="number", sense="less", strategies=_TRADEOFFS,
           tag="method/communication_best",
           meaning="least communication cost in the population; see [FedMOEAC](fed_moeac.md#metrics)"),
    Metric(name="diversity", unit="initial standard deviations", strategies=("de", "fne"), tag="population/diversity",
           meaning="spread between individuals, mean over genes; see [FNE](fne.md#metrics)"),
    Metric(name="epsilon", unit="number", sense="less", strategies=("dp_fedavg", "dp_sgd", *_TRADEOFFS),
           tag="method/epsilon", meaning="accounted bound on the privacy loss so far"),
    Metric(name="error_best", unit="number", sense="less", strategies=_TRADEOFFS, tag="method/error_best",
           meaning="least error (for regression loss) in the population; see [FedMOEAC](fed_moeac.md#metrics)"),
    Metric(name="finalists", unit="points", strategies=(*_SURROGATES, *_FRONTS), tag="method/finalists",
           meaning="last line of a search that ends with [finals](fdd_ea.md#finals): points that all nodes measured "
                   "again; they count in `evaluations`"),
    Metric(name="front_size", unit="points", strategies=_FRONTS, tag="search/front_size",
           meaning="simulated search for a front: number of points without noise that no other measured point "
                   "dominates, mean over runs"),
    *_each("hypervolume hypervolume_seen", unit="number", sense="more", strategies=_TRADEOFFS, tag="method/*",
           meaning="hypervolume of the population, and of everything evaluated so far; see "
                   "[FedMOEAC](fed_moeac.md#metrics)"),
    Metric(name="igd", unit="objective", sense="less", strategies=_FRONTS, tag="search/igd",
           meaning="simulated search for a known front: inverted generational distance of all measured points to the "
                   "true front, mean over runs"),
    Metric(name="igds", unit="objective", sense="less", kind="list", strategies=_FRONTS,
           meaning=f"`igd` of each run{_PER_RUN}"),
    Metric(name="loss_validation", unit="loss", sense="less", tag="validation/loss",
           meaning="mean loss of this step's fittest or global model on the validation part; null in steps without "
                   "validation"),
    Metric(name="losses", unit="loss", sense="less", kind="list", strategies=("fsi", "fsi_shared"),
           meaning="least loss of each model, swarm after swarm, where there are several"),
    Metric(name="lr", unit="number", strategies=("es",), tag="method/lr",
           meaning="learning rate of this generation"),
    Metric(name="moved", unit="individuals", strategies=("fsi", "fsi_shared"), tag="method/moved",
           meaning="particles that moved, counted separately for each model"),
    Metric(name="multiplier", unit="number", strategies=("fne",), tag="population/multiplier",
           meaning="multiplier on chance and rate of the next mutation; see [FNE](fne.md#metrics)"),
    Metric(name="participants", unit="nodes", tag="method/participants",
           meaning="nodes in the step's secure sum; see [Secure sums](secure.md#what-the-history-has)"),
    Metric(name="replaced", unit="individuals", strategies=("de",), tag="method/replaced",
           meaning="parents that lost to their trial"),
    Metric(name="samples", unit="samples", tag="method/samples",
           meaning="samples of the nodes in the step's secure sum"),
    Metric(name="score_best", unit="number", sense="less", strategies=_TRADEOFFS, tag="method/score_best",
           meaning="least privacy score in the population; see [FedMOEAC](fed_moeac.md#metrics)"),
    Metric(name="sigma", unit="initial standard deviations", strategies=("es", "fsi_shared", "sep_cma", "snes"),
           tag="method/sigma",
           meaning="size of this generation's perturbations or mean width of the next; see [ES](es.md#metrics) and "
                   "[FSI](fsi.md#metrics)"),
    Metric(name="survivors", unit="individuals", strategies=_FRONTS, tag="search/survivors",
           meaning="candidates that survive selection, mean over runs"),
)  # fmt: skip
"""Metrics that follow in order of name, with any that the table does not name between them."""

_LAST = (
    Metric(name="per_node", kind="mapping",
           meaning="node -> its scalar payloads: `samples`, and for the gradient baselines `loss`, summed over the "
                   "node's samples; empty with [secure sums](secure.md#what-the-history-has)"),
)  # fmt: skip
"""Metrics that end a line."""

METRICS = (*_FIRST, *_BY_NAME, *_LAST)
"""Metrics of a step, in the order of the keys in `history.jsonl`."""

TAGS = {metric.name: metric.tag for metric in METRICS}
"""Metric -> tag in TensorBoard; "" for those that TensorBoard does not show."""

_RANK = {metric.name: rank for rank, metric in enumerate(_FIRST)} | {
    metric.name: len(_FIRST) + 1 + rank for rank, metric in enumerate(_LAST)
}


def order(name: str) -> tuple[int, str]:
    """Return the sort key of a metric in a line of the history, whether or not the table names it."""
    return _RANK.get(name, len(_FIRST)), name


# ------------------------------------------------------------------------------------------------ summaries
def _sent(what: str, down: str) -> Iterator[Metric]:
    """Yield the totals of frames or tensors in one direction: mean over the nodes, and the node with the most."""
    name, title, meant = {
        "frames": ("bytes", "encoded", "encoded frames of a node over the whole run"),
        "tensors": ("payload", "payload", "tensors of a node over the whole run, without message heads"),
    }[what]
    for suffix, among in (("", "mean"), ("_max", "max")):
        yield Metric(
            name=f"{name}_{down}_per_node{suffix}",
            meaning=f"{meant}: mean over all nodes, and (`_max`) the node with the most; a node that received no "
            "request counts as zero; null where the method is not federated",
            unit="bytes",
            sense="less",
            column=f"{down}\n/node" if (what, among) == ("frames", "mean") else "",
            bytes_column=f"{down}\n{title}\n{among}",
        )


SUMMARY = (
    *_each("name method dataset model partition", kind="text", meaning="names from the config"),
    Metric(name="split", kind="text",
           meaning="how the data were split; for random splits with sizes (training/validation/test)"),
    Metric(name="source", kind="text", meaning="origin of the data, with the number of samples"),
    Metric(name="experiment", kind="text",
           meaning="digest of the config without name, seed, fold, files and machine; tables put runs with the same "
                   "digest into one row"),
    *_each("fold folds", unit="number",
           meaning="the split is fold `fold` (from 0) of `folds`; null without folds"),
    Metric(name="nodes", unit="nodes", meaning="nodes that share the data; 1 for `centralised`"),
    Metric(name="seed", unit="number", meaning="seed of the run"),
    Metric(name="finished", kind="flag", meaning="true"),
    Metric(name="steps", unit="steps", meaning="steps taken"),
    Metric(name="loss", kind="text", meaning="name of the loss"),
    Metric(name="accuracy_test", unit="fraction", sense="more", column="test",
           meaning="accuracy of the run's model on the test part; null for regression"),
    Metric(name="loss_test", unit="loss", sense="less", meaning="mean loss of the run's model on the test part"),
    Metric(name="accuracy_test_by_subject", unit="fraction", sense="more", kind="mapping",
           meaning="subject -> accuracy of the run's model on that subject's test samples; null where the data name no "
                   "subjects, and for regression"),
    Metric(name="accuracy_test_subjects", unit="fraction", sense="more",
           meaning="share of the test subjects with more than half of their samples classified correctly; exactly half "
                   "counts half; null in the same cases"),
    Metric(name="majority_test", unit="fraction", column="major-\nity",
           meaning="accuracy on the test part of always answering its most frequent class; null for regression"),
    Metric(name="accuracy_best", unit="fraction", sense="more", column="best\nval.",
           meaning="maximum validation accuracy over all validated steps"),
    Metric(name="accuracy_last", unit="fraction", sense="more", column="last\nval.",
           meaning="validation accuracy of the last step"),
    Metric(name="loss_last", unit="loss", sense="less", meaning="validation loss of the last step"),
    Metric(name="rounds", unit="rounds", column="rounds", meaning="rounds or generations taken; in a search queries"),
    Metric(name="evaluations", unit="individuals", column="evalu-\nations", meaning="as in the history"),
    *_sent("tensors", "down"),
    *_sent("frames", "down"),
    Metric(name="catch_up_per_node", unit="bytes", sense="less", bytes_column="of it\ncatch-up\nmean",
           meaning="part of the encoded bytes down that brought late nodes up to a step, mean over all nodes; 0 except "
                   "with `wire: lineage`"),
    Metric(name="catch_up_per_node_max", unit="bytes", sense="less",
           meaning="the same for the node with the most"),
    Metric(name="snapshots", unit="snapshots", sense="less", bytes_column="snap-\nshots",
           meaning="whole states that were sent to late nodes over the run, to all nodes together"),
    *_sent("tensors", "up"),
    *_sent("frames", "up"),
    Metric(name="failures", unit="steps", sense="less", kind="mapping",
           meaning="node -> `asked` (steps that addressed the node), `failed` (steps in which the node failed), `away` "
                   "(steps in which the node had left) and `reason` (the last one), for nodes that failed or were away "
                   "at least once; an owner who declines does not fail. The terminal names the nodes that failed most, "
                   "and warns where a node failed in more than a tenth of its steps"),
    Metric(name="wall_seconds", unit="seconds", sense="less", column="time\n(s)",
           meaning="wall time of the loop, over all resumed parts"),
    Metric(name="cpu_seconds", unit="processor seconds", sense="less", column="CPU (s)",
           meaning="processor time of the loop with validation and callbacks, over all resumed parts"),
    Metric(name="cpu_seconds_total", unit="processor seconds", sense="less",
           meaning="the same with loading of the data and the end of the run; imports not included"),
    Metric(name="model_sha256", kind="text", meaning="digest of `model.safetensors`"),
    Metric(name="plugins", kind="mapping", meaning="file -> SHA-256, for the plugins in use"),
    Metric(name="device", kind="text", meaning="device on which the run was computed"),
    Metric(name="threads", unit="number", meaning="threads of PyTorch on the CPU"),
    Metric(name="folder", kind="text", meaning="run folder as the user gave it"),
    Metric(name="best_value", unit="objective", sense="less", column="best\nvalue",
           meaning="search for one objective: best value known at the end, after [finals](fdd_ea.md#finals) the mean "
                   "over the nodes; null for a model"),
    Metric(name="best_point", kind="mapping", meaning="variable -> value at the point of `best_value`"),
    Metric(name="best_values", unit="objective", sense="less", kind="list",
           meaning="search for one objective: best value of each of `strategy.runs`"),
    Metric(name="best_values_exact", unit="objective", sense="less", kind="list",
           meaning="simulated search for one objective: least value that any node has measured in each run, without "
                   "noise"),
    Metric(name="optimum", unit="objective", meaning="search: least value of the problem, if known"),
    Metric(name="front_size", unit="points", column="front",
           meaning="search for a front, `fed_moeac` and `nsga2`: number of published points that no other published "
                   "point dominates, mean over runs"),
    Metric(name="igd", unit="objective", sense="less", meaning="search for a known front: inverted generational "
           "distance of the published points to the true front, mean over runs"),
    Metric(name="front_size_exact", unit="points",
           meaning="the same as `front_size` in simulation, of all points that any node has measured, without noise"),
    Metric(name="igd_exact", unit="objective", sense="less",
           meaning="the same as `igd` in simulation, of all points that any node has measured, without noise"),
    Metric(name="igds_exact", unit="objective", sense="less", kind="list",
           meaning=f"`igd_exact` of each run{_PER_RUN}"),
    Metric(name="privacy", kind="mapping",
           meaning="`fed_moeac`, `nsga2`, `dp_fedavg` and `dp_sgd`: privacy loss of the whole run, see "
                   "[FedMOEAC](fed_moeac.md#two-figures-of-privacy)"),
)  # fmt: skip
"""Fields of a summary, in the order of the columns of the tables of runs."""
