"""Train a decoder as a sentence encoder by contrast: a pair's vectors are close, all others far apart."""

import numpy as np
import torch
from decoder import Decoder
from mixture import Batch
from objective import Objective
from pairs import padded
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

TEMPERATURE = 0.05


def vectors(decoder: Decoder, tokens: Tensor, documents: Tensor) -> Tensor:
    """Vectors [texts, hidden] of length 1: mean states, with bidirectional attention."""
    own = documents.bool()
    with torch.autocast(tokens.device.type, torch.bfloat16):
        states = decoder.states(tokens, own[:, None, None, :])
    weights = own.float()[..., None]
    return F.normalize((states.float() * weights).sum(1) / weights.sum(1), dim=-1)


def contrast(decoder: Decoder) -> Objective:
    """InfoNCE (van den Oord et al. 2018) with the other pairs of a batch as negatives, in both
    directions, except those of the same group.
    """

    def loss(batch: Batch) -> Tensor:
        both = vectors(decoder, batch.tokens, batch.documents)
        first, second = both[0::2], both[1::2]
        groups = batch.weights[0::2, 0]
        same = (groups[:, None] == groups[None, :]) & ~torch.eye(
            len(groups), dtype=torch.bool, device=groups.device
        )
        scores = (first @ second.T / TEMPERATURE).masked_fill(same, -torch.inf)
        wanted = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2

    return loss


@torch.no_grad()
def encode_texts(
    decoder: Decoder, tokenizer: Tokenizer, texts: list[str], device: torch.device
) -> np.ndarray:
    """Vectors [texts, hidden], computed in batches of texts of similar length."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    found = np.empty((len(texts), decoder.shape.hidden), np.float32)
    for begin in range(0, len(order), 128):
        places = order[begin : begin + 128]
        tokens, documents = padded(tokenizer, [texts[at] for at in places])
        found[places] = vectors(decoder, tokens.to(device), documents.to(device)).cpu().numpy()
    return found
