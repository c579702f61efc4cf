"""Protection of old tasks by penalties on moved weights, or by PackNet (`packnet`).

The penalties are L2 and EWC (Kirkpatrick et al. 2017). At a later stage's start the encoder's weights are the anchor.
Moving one costs its squared distance from there, times its importance: 1 for L2; for EWC the Fisher information of old
policies, how much their actions change with the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ctrlformer.agents.sac.packnet import PRUNE_AT, PackNet
from ctrlformer.config import TransferConfig

FISHER_OBSERVATIONS = 64  # of each old task

Gaussian = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A policy: observations (B, ...) to mean and log of the std of its actions before tanh, (B, A) each."""


class WeightPenalty(nn.Module):
    """Anchor and importance of every weight that a network has when it is made; later ones are free."""

    def __init__(self, network: nn.Module, importance: float) -> None:
        super().__init__()
        self._weights = [parameter for _, parameter in network.named_parameters()]
        for number, weight in enumerate(self._weights):
            self.register_buffer(f"anchor{number}", weight.detach().clone())
            self.register_buffer(f"importance{number}", torch.full_like(weight, importance, requires_grad=False))

    def weigh(self, policies: Iterable[tuple[Gaussian, Tensor]]) -> None:
        """Set the importance by the Fisher information of policies, summed, each on observations (N, ...)."""
        total = [torch.zeros_like(weight) for weight in self._weights]
        for policy, observations in policies:
            for sum_, one in zip(total, fisher(policy, observations, self._weights), strict=True):
                sum_ += one
        for number, importance in enumerate(total):
            self.get_buffer(f"importance{number}").copy_(importance)

    def forward(self) -> Tensor:
        """Sum over weights of importance * (weight - anchor)^2."""
        buffers: Mapping[str, Tensor] = dict(self.named_buffers())
        parts = [
            (buffers[f"importance{number}"] * (weight - buffers[f"anchor{number}"]).square()).sum()
            for number, weight in enumerate(self._weights)
        ]
        return torch.stack(parts).sum()


def fisher(policy: Gaussian, observations: Tensor, weights: list[nn.Parameter]) -> list[Tensor]:
    """Diagonal of a Gaussian policy's Fisher information, averaged over observations (N, ...): exact, by the gradients
    of every mean and log std. In these two coordinates the information of a Gaussian is 1 / std^2 and 2.

    >>> weight = nn.Parameter(torch.tensor(3.0))
    >>> observations, log_std = torch.tensor([[1.0], [2.0]]), torch.zeros(1, 1)
    >>> fisher(lambda x: (weight * x, log_std), observations, [weight])  # (1 + 4) / 2
    [tensor(2.5000)]
    """
    total = [torch.zeros_like(weight) for weight in weights]
    learning = [number for number, weight in enumerate(weights) if weight.requires_grad]
    for observation in torch.split(observations, 1):
        mean, log_std = policy(observation)
        information = torch.cat([(-2 * log_std).exp(), torch.full_like(log_std, 2.0)], 1).detach()[0]  # (2A,)
        for output, weight in zip(torch.cat([mean, log_std], 1)[0], information, strict=True):
            if output.requires_grad:
                wanted = [weights[number] for number in learning]
                gradients = torch.autograd.grad(output, wanted, retain_graph=True, allow_unused=True)
                for number, gradient in zip(learning, gradients, strict=True):
                    if gradient is not None:
                        total[number] += weight * gradient.square() / len(observations)
    return total


class Protection:
    """How an encoder's weights are protected; freezing and rehearsing are not its business, nor do they need it."""

    def __init__(self, encoder: nn.Module, transfer: TransferConfig) -> None:
        """`transfer` is the run's: PackNet begins with the first stage."""
        self._encoder, self._transfer = encoder, transfer
        self._penalty: WeightPenalty | None = None  # of the stage under way
        self._packnet = PackNet(encoder, transfer.packnet_share) if transfer.protect == "packnet" else None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What a checkpoint stores."""
        every = {"penalty": self._penalty, "packnet": self._packnet}
        return {name: module for name, module in every.items() if module is not None}

    def begin_stage(self, transfer: TransferConfig) -> None:
        """A later stage begins: the weights are as earlier tasks left them, and the new task's are not there yet."""
        self._transfer, self._penalty = transfer, None
        if transfer.protect in ("l2", "ewc"):
            self._penalty = WeightPenalty(self._encoder, 1.0 if transfer.protect == "l2" else 0.0)
        if self._packnet:
            self._packnet.begin_stage()

    def add_task(self) -> None:
        """A task of the stage under way."""
        if self._packnet:
            self._packnet.add_task()

    def weigh(self, policies: Iterable[tuple[Gaussian, Tensor]]) -> None:
        """Tell EWC the old policies, each with observations of its task."""
        if self._penalty and self._transfer.protect == "ewc":
            self._penalty.weigh((policy, observations[:FISHER_OBSERVATIONS]) for policy, observations in policies)

    def moved(self) -> Tensor | None:
        """What moved weights cost, in proportion to `transfer.penalty_weight`."""
        return None if self._penalty is None else self._transfer.penalty_weight * self._penalty()

    def prune_at(self, progress: float) -> None:
        """PackNet prunes when so much of a stage's updates is done."""
        if self._packnet and progress >= PRUNE_AT:
            self._packnet.prune()

    def held(self) -> AbstractContextManager[None]:
        """Inside, an optimiser may step; what PackNet holds comes back to the bit."""
        return self._packnet.held() if self._packnet else nullcontext()

    def weights_of(self, task: int) -> AbstractContextManager[None]:
        """Inside, the encoder has the weights that play the task."""
        return self._packnet.weights_of(task) if self._packnet else nullcontext()
