"""The Llama-architecture decoder that the recipes train; parameters are named as in checkpoints."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the decoder; the defaults give 1.44 million parameters."""

    vocabulary: int = 2048
    hidden: int = 128
    intermediate: int = 384
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    context: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


class Norm(nn.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        split = (batch, length, -1, self.shape.head)
        q = _rotate(self.q_proj(x).view(split).transpose(1, 2), cos, sin)
        k = _rotate(self.k_proj(x).view(split).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(split).transpose(1, 2)
        group = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """The gated SiLU feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers, final norm; the embedding is tied to the output projection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.norm_eps)
        inverse = shape.rope_theta ** (-torch.arange(0, shape.head, 2).float() / shape.head)
        angles = torch.outer(torch.arange(shape.context).float(), inverse).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def initialize(self, generator: torch.Generator) -> None:
        """Initializes all matrices; those that write into the residual stream start smaller (as in GPT-2)."""
        residual = 0.02 / (2 * self.shape.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deviation = residual if "o_proj" in name or "down_proj" in name else 0.02
                nn.init.normal_(parameter, 0.0, deviation, generator=generator)

    @torch.no_grad()
    def start_from(self, path: Path) -> None:
        """Loads embeddings and the first layers from a decoder of the same widths: a model folder's
        weights, or a training checkpoint.
        """
        tensors = load_file(path)
        for name, parameter in self.named_parameters():
            there = next((tensors[p + name] for p in ("model.", "weight.") if p + name in tensors), None)
            if there is not None:
                parameter.copy_(there)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary] of tokens [batch, length]."""
        return self.logits(self.states(tokens))

    def states(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Final hidden states [batch, length, hidden]; `mask` [batch, 1, length, length] is True where a
        query attends to a key; the default is causal.
        """
        length = tokens.shape[1]
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[:length].to(x.dtype), self.sin[:length].to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)

    def logits(self, states: Tensor) -> Tensor:
        """Logits [..., vocabulary] of hidden states [..., hidden]."""
        return F.linear(states, self.embed_tokens.weight)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)
