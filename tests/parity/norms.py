"""transformers' RMSNorm computes in float32 whatever its model is in; here it can be made exact."""

import torch


def keep_float64(monkeypatch, norm: type) -> None:
    """Let a norm of transformers stay in float64 where its model is."""
    usual = norm.forward

    def forward(self, x):
        if x.dtype != torch.float64:
            return usual(self, x)
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(norm, "forward", forward)
