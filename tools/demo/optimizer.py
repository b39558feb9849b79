"""Muon for the hidden matrices, AdamW for the rest: both in the plainest form.

Muon (Jordan et al. 2024): momentum, then the nearest orthogonal matrix by five Newton-Schulz
steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalized(matrix: Tensor, steps: int = 5) -> Tensor:
    """Matrices [..., rows, columns] with all singular values of each brought near 1."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = (matrix.mT if tall else matrix).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).float()
    return result


class Muon(torch.optim.Optimizer):
    """Nesterov momentum and orthogonalized steps; takes matrices, and experts' stacks of them."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One step over every matrix that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                self._step_one(param, group)

    def _step_one(self, param: Tensor, group: dict[str, float]) -> None:
        if param.grad is None:
            return
        state = self.state[param]
        if not state:
            state["momentum"] = torch.zeros_like(param)
        momentum = state["momentum"]
        momentum.lerp_(param.grad, 1 - group["momentum"])
        update = orthogonalized(param.grad.lerp(momentum, group["momentum"]))
        # Steps of one size whatever the shape, about 0.2 of AdamW's largest (arXiv 2502.16982).
        scale = 0.2 * max(param.shape[-2:]) ** 0.5
        param.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)


def make_optimizers(
    model: nn.Module, lr: float, weight_decay: float, hidden_by_muon: bool
) -> list[torch.optim.Optimizer]:
    """Optimizers of all parameters: the layers' matrices, then embeddings, routers and vectors."""
    named = list(model.named_parameters())
    hidden = [p for name, p in named if _is_hidden(name, p)]
    rest = [p for name, p in named if not _is_hidden(name, p)]
    adam = {"lr": lr, "betas": (0.9, 0.98), "fused": True}
    if hidden_by_muon:
        return [
            Muon(hidden, lr, weight_decay=weight_decay),
            torch.optim.AdamW(rest, weight_decay=0.0, **adam),  # type: ignore[arg-type]
        ]
    groups = [
        {"params": hidden, "weight_decay": weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return [torch.optim.AdamW(groups, **adam)]  # type: ignore[arg-type]


def _is_hidden(name: str, parameter: Tensor) -> bool:
    """Whether it is a matrix of a layer or a stack of them, a router's rows apart."""
    return parameter.ndim >= 2 and "embed" not in name and "router" not in name
