"""Centralised training: federated averaging with one node that holds all data; an upper bound, not a federated method.

The defaults are FNE's control (Szegedi, Kiss, Horváth, ITAT 2019, section 3.2): AdaDelta, learning rate 1, rho 0.95,
epsilon 1e-7 (M. D. Zeiler, arXiv:1212.5701), batches of 64, 100 epochs, categorical cross-entropy.
"""

from __future__ import annotations

from typing import Annotated

from fne.config.groups import LocalTraining, Optimizer, Returns, SgdMomentum, TrainedLoss
from fne.config.registry import Key, register
from fne.learning.averaging import Averaging
from fne.learning.task import LearningTask


@register("strategy", "centralised", pooled=True)
def centralised(
    task: LearningTask,
    *,
    seed: int,
    rounds: Annotated[int, Key("number of epochs, one per step", unit="epochs", ge=1)] = 100,
    batch_size: Annotated[int, Key("batch size; 0: all samples at once", unit="samples", ge=0)] = 64,
    optimizer: Annotated[Optimizer, Key("optimizer; its state persists between epochs")] = "adadelta",
    lr: Annotated[float, Key("learning rate", gt=0)] = 1.0,
    lr_decay: Annotated[float, Key("factor on lr after each epoch", gt=0, le=1)] = 1.0,
    momentum: SgdMomentum = 0.0,
    loss: TrainedLoss = "cross_entropy",
    returns: Returns = "last",
) -> Averaging:
    """Centralised back-propagation on the pooled data, one epoch per step."""
    training = LocalTraining(
        fraction=1.0, batch_size=batch_size, optimizer=optimizer, lr=lr, lr_decay=lr_decay, momentum=momentum,
        loss=loss, returns=returns,
    )  # fmt: skip
    return Averaging(task, seed=seed, rounds=rounds, training=training, more={"keep_optimizer": True}, pooled=True)
