"""The model of model.py in PyTorch, for training and for the swap check beside PyTorch. The attention is a function of q, k, v
[batch, heads, seqlen, head_dim] that autograd can go through."""
import math

import torch
import torch.nn.functional as F

from model import EPSILON


def eager_attention(q, k, v):
    """The three lines, causal."""
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return torch.softmax(s.masked_fill(hidden, -math.inf), -1) @ v


def logits_of(weights, config, inputs, attention):
    """[batch, seqlen, characters]; weights are tensors by the names of model.py."""
    batch, seqlen = inputs.shape
    heads = config["heads"]
    x = weights["token"][inputs] + weights["position"][:seqlen]
    width = x.shape[-1]
    for layer in range(config["layers"]):
        w = {name: weights[f"{layer}.{name}"] for name in ("norm1", "bias1", "qkv", "out", "norm2", "bias2", "up", "down")}
        y = F.layer_norm(x, (width,), w["norm1"], w["bias1"], EPSILON)
        q, k, v = (y @ w["qkv"]).view(batch, seqlen, 3, heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        x = x + attention(q, k, v).transpose(1, 2).reshape(batch, seqlen, width) @ w["out"]
        y = F.layer_norm(x, (width,), w["norm2"], w["bias2"], EPSILON)
        x = x + F.gelu(y @ w["up"], approximate="tanh") @ w["down"]
    return F.layer_norm(x, (width,), weights["norm"], weights["bias"], EPSILON) @ weights["head"]


def loss_of(logits, targets):
    """Mean cross entropy in nats, taken in float64 from the logits as they are."""
    return F.cross_entropy(logits.double().flatten(0, 1), targets.flatten())
