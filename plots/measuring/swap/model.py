"""The swap check's model in NumPy: a small GPT, its loss and its gradients, in whatever precision the weights have.

A pre-norm transformer (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3): token
and position embeddings, layers of causal attention and an MLP with the tanh GELU, a last layer norm, a linear head.
Only the layer norms have biases. The attention is a pair of functions handed in, so that it can be swapped while
everything around it stays the same:

    forward(q, k, v) -> (o, saved)         q, k, v, o [batch, heads, seqlen, head_dim], causal, scale 1/sqrt(head_dim)
    backward(saved, d_o) -> (dq, dk, dv)    only where gradients are asked for
"""

import json
import math
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent
EPSILON = 1e-5  # of the layer norms, as PyTorch's default


def load_model(path=FOLDER / "weights.npz"):
    """(weights, config): arrays by name in float32; config has layers, heads, context, characters (a string, the
    vocabulary)."""
    with np.load(path) as file:
        weights = {name: file[name] for name in file.files if name != "config"}
        return weights, json.loads(str(file["config"]))


def encode(text, config):
    """[n] token ids. Raises ValueError for a character that the model does not know."""
    ids = {character: n for n, character in enumerate(config["characters"])}
    unknown = set(text) - set(ids)
    if unknown:
        raise ValueError(f"the model does not know the characters {sorted(unknown)}")
    return np.array([ids[character] for character in text])


def sequences(tokens, context):
    """(inputs, targets), both [batch, context]: the text in pieces, each token's target its successor; a short last
    piece is left out."""
    batch = (len(tokens) - 1) // context
    if batch == 0:
        raise ValueError(f"the text has {len(tokens)} characters, the model's context is {context}")
    return tokens[: batch * context].reshape(batch, context), tokens[1 : batch * context + 1].reshape(batch, context)


class EagerAttention:
    """Attention in three lines, and its standard backward: P is kept."""

    @staticmethod
    def forward(q, k, v, rounded=lambda x: x):
        """`rounded` is what storing does to a result: nothing, or the rounding to fewer bits."""
        scale, n = 1 / math.sqrt(q.shape[-1]), q.shape[-2]
        s = rounded(rounded(q @ k.swapaxes(-1, -2)) * scale)
        s[..., ~np.tri(n, dtype=bool)] = -np.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        p = rounded(p / p.sum(-1, keepdims=True))
        return rounded(p @ v), (q, k, v, p, scale)

    @staticmethod
    def backward(saved, d_o, rounded=lambda x: x):
        q, k, v, p, scale = saved
        dp = rounded(d_o @ v.swapaxes(-1, -2))
        ds = rounded(scale * rounded(p * (dp - (p * dp).sum(-1, keepdims=True))))
        return rounded(ds @ k), rounded(ds.swapaxes(-1, -2) @ q), rounded(p.swapaxes(-1, -2) @ d_o)


def run(weights, config, inputs, targets, attention, gradients=True, loss_scale=1):
    """(logits [batch, seqlen, characters], mean cross entropy in nats, gradients by weight name), computed in the
    weights' precision; only the loss is taken in float64, from the logits as they are. Without `gradients` there are
    none. The backward is of the loss times `loss_scale`, so that what passes through an attention in 16 bits stays
    above that type's smallest number, and the gradients are divided by it."""
    backward = []  # one function per stage: gradient of its output -> gradient of its input
    kept = {}

    def keep(name, gradient):
        kept[name] = gradient

    batch, seqlen = inputs.shape
    x = weights["token"][inputs] + weights["position"][:seqlen]
    for layer in range(config["layers"]):
        w = {
            name: weights[f"{layer}.{name}"]
            for name in ("norm1", "bias1", "qkv", "out", "norm2", "bias2", "up", "down")
        }
        keep_layer = lambda name, gradient, layer=layer: keep(f"{layer}.{name}", gradient)
        a, undo = _attention_block(x, w, config["heads"], attention, keep_layer)
        x = x + a
        backward.append(undo)
        a, undo = _mlp_block(x, w, keep_layer)
        x = x + a
        backward.append(undo)
    y, undo_norm = _layer_norm(x, weights["norm"], weights["bias"], lambda g, b: (keep("norm", g), keep("bias", b)))
    logits, undo_head = _linear(y, weights["head"], lambda g: keep("head", g))

    shifted = logits.astype(np.float64)
    shifted = shifted - shifted.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    at_target = np.take_along_axis(log_p, targets[..., None], -1)
    loss = -at_target.mean()
    if not gradients:
        return logits, float(loss), {}

    d_logits = np.exp(log_p)
    np.put_along_axis(d_logits, targets[..., None], np.exp(at_target) - 1, -1)
    dx = undo_norm(undo_head((d_logits * (loss_scale / targets.size)).astype(logits.dtype)))
    for undo in reversed(backward):
        dx = dx + undo(dx)
    d_token = np.zeros_like(weights["token"])
    np.add.at(d_token, inputs, dx)
    d_position = np.zeros_like(weights["position"])
    d_position[:seqlen] = dx.sum(0)
    kept.update(token=d_token, position=d_position)
    return logits, float(loss), {name: g / loss_scale for name, g in kept.items()}


def _linear(x, w, keep):
    flat = x.reshape(-1, x.shape[-1])
    y = (flat @ w).reshape(*x.shape[:-1], w.shape[-1])

    def backward(dy):
        d_flat = dy.reshape(-1, w.shape[-1])
        keep(flat.T @ d_flat)
        return (d_flat @ w.T).reshape(x.shape)

    return y, backward


def _layer_norm(x, gain, bias, keep):
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
    normal = centred * inverse

    def backward(dy):
        keep((dy * normal).sum((0, 1)), dy.sum((0, 1)))
        d_normal = dy * gain
        return inverse * (
            d_normal - d_normal.mean(-1, keepdims=True) - normal * (d_normal * normal).mean(-1, keepdims=True)
        )

    return normal * gain + bias, backward


def _attention_block(x, w, heads, attention, keep):
    batch, seqlen, width = x.shape
    y, undo_norm = _layer_norm(x, w["norm1"], w["bias1"], lambda g, b: (keep("norm1", g), keep("bias1", b)))
    qkv, undo_qkv = _linear(y, w["qkv"], lambda g: keep("qkv", g))
    q, k, v = np.ascontiguousarray(qkv.reshape(batch, seqlen, 3, heads, -1).transpose(2, 0, 3, 1, 4))
    o, saved = attention.forward(q, k, v)
    z, undo_out = _linear(o.transpose(0, 2, 1, 3).reshape(batch, seqlen, width), w["out"], lambda g: keep("out", g))

    def backward(dz):
        d_o = np.ascontiguousarray(undo_out(dz).reshape(batch, seqlen, heads, -1).transpose(0, 2, 1, 3))
        d_qkv = np.stack(attention.backward(saved, d_o)).transpose(1, 3, 0, 2, 4).reshape(batch, seqlen, 3 * width)
        return undo_norm(undo_qkv(d_qkv))

    return z, backward


def _mlp_block(x, w, keep):
    y, undo_norm = _layer_norm(x, w["norm2"], w["bias2"], lambda g, b: (keep("norm2", g), keep("bias2", b)))
    h, undo_up = _linear(y, w["up"], lambda g: keep("up", g))
    slope = math.sqrt(2 / math.pi)
    t = np.tanh(slope * (h + 0.044715 * h * h * h))
    z, undo_down = _linear(0.5 * h * (1 + t), w["down"], lambda g: keep("down", g))

    def backward(dz):
        d_gelu = 0.5 * (1 + t) + 0.5 * h * (1 - t * t) * slope * (1 + 3 * 0.044715 * h * h)
        return undo_norm(undo_up(undo_down(dz) * d_gelu))

    return z, backward
