"""AdamW that takes in new tasks' parameters and never steps along a gradient that is not finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ctrlformer.config import AgentConfig
from ctrlformer.errors import NonFiniteError

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
STEP = ".step"
REMEDY = "try a lower --agent.learning-rate"


def scheduled_rate(settings: AgentConfig, progress: float) -> float:
    """The learning rate when so much of a stage is done, 0 to 1."""
    rate, late = settings.learning_rate, settings.late_learning_rate
    if late is None:
        return rate
    if settings.rate_schedule == "linear":
        return rate + (late - rate) * min(progress, 1.0)
    return late if progress >= settings.late_from else rate


class Optimiser:
    """One fused AdamW for the parameters of one loss, in groups with a learning rate and decay of their own.

    On a CPU a bad loss or gradient raises before anything changes. On an accelerator, where looking would make
    the processor wait for the device, the step is skipped there and `check` raises later (`deferred`).
    """

    def __init__(self, name: str, settings: AgentConfig, device: torch.device, remedy: str = REMEDY) -> None:
        self.name, self._remedy = name, remedy
        self.deferred = device.type != "cpu"
        betas = (settings.adam_beta1, settings.adam_beta2)
        # Parameters come with the first task, but torch wants a group at once.
        empty: dict[str, Any] = {"params": [], "scale": 1.0, "weight_decay": 0.0}
        self._adam = torch.optim.AdamW([empty], lr=settings.learning_rate, betas=betas, fused=True)
        self._skipped = torch.zeros((), device=device)  # 1 once a step was skipped

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for group in self._adam.param_groups if group["params"]]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self._adam.param_groups for p in group["params"]]

    def add(self, parameters: Iterable[nn.Parameter], scale: float, decay: float) -> None:
        """More parameters to step, at `scale` times the learning rate; what is known of the others stays."""
        self._adam.add_param_group({"params": list(parameters), "scale": scale, "weight_decay": decay})

    def rescale(self, parameters: Iterable[nn.Parameter], scale: float) -> None:
        """Another `scale` for the groups of these parameters."""
        wanted = {id(p) for p in parameters}
        for group in self.param_groups:
            if wanted & {id(p) for p in group["params"]}:
                group["scale"] = scale

    def set_rate(self, rate: float) -> None:
        for group in self._adam.param_groups:
            group["lr"] = rate * group["scale"]

    def step(self, loss: Tensor, clip: float | None = None) -> Tensor:
        """Step down the gradient of `loss`; gives the gradient's norm before clipping."""
        if not self.deferred:
            self._refuse(loss, "loss")
        self._adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        with_gradient = [p for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in with_gradient if p.grad is not None])
        if self.deferred:
            self._skip_if_bad(loss, norm)
        else:
            self._refuse(norm, "gradient")
        if clip is not None:
            nn.utils.clip_grads_with_norm_(with_gradient, clip, norm)
        self._adam.step()
        return norm

    def _refuse(self, value: Tensor, what: str) -> None:
        if not bool(torch.isfinite(value)):
            raise NonFiniteError(f"the {self.name} {what} is {float(value.detach())}: {self._remedy}")

    def _skip_if_bad(self, loss: Tensor, norm: Tensor) -> None:
        """Fused AdamW leaves everything as it is where `found_inf` is 1, decided on the device."""
        bad = (~(torch.isfinite(loss.detach()) & torch.isfinite(norm))).float()
        self._skipped = torch.maximum(self._skipped, bad)
        self._adam.found_inf = bad  # type: ignore[attr-defined]

    def check(self) -> None:
        """Raise if a step was skipped since the start: the one place where the device is waited for."""
        if self.deferred and bool(self._skipped):
            raise NonFiniteError(f"the {self.name} loss or gradient stopped being finite: {self._remedy}")

    def tensors(self) -> dict[str, Tensor]:
        """Adam's moments under flat names: parameter number, then the moment's name."""
        state = self._adam.state_dict()["state"]
        return {f"{number}.{key}": value for number, moments in state.items() for key, value in moments.items()}

    def load_tensors(self, saved: Mapping[str, Tensor]) -> None:
        """Take over `tensors()`; anything else is a `ValueError`."""
        state: dict[int, dict[str, Tensor]] = {}
        left = dict(saved)
        for number, owner in enumerate(self.parameters):
            moments = {key: left.pop(f"{number}.{key}", None) for key in MOMENTS}
            if any(value is not None for value in moments.values()):
                state[number] = {key: _moment(f"{number}.{key}", value, owner) for key, value in moments.items()}
        if left:
            raise ValueError(f"{self.name} optimiser: {min(left)[:80]!r} belongs to no parameter")
        self._adam.load_state_dict({"state": state, "param_groups": self._adam.state_dict()["param_groups"]})


def _moment(name: str, value: Tensor | None, owner: nn.Parameter) -> Tensor:
    """Fused AdamW walks raw memory: a moment must be as large as its parameter, and lie as it does (convolutions:
    channels last)."""
    shape = () if name.endswith(STEP) else owner.shape
    if value is None or value.shape != shape or not value.is_floating_point():
        raise ValueError(f"{name} does not fit its parameter of shape {tuple(owner.shape)}")
    if not shape:
        return value.float()
    return torch.empty_like(owner, requires_grad=False).copy_(value)
