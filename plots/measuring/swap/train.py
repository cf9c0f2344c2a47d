#!/usr/bin/env python3
"""Trains the swap check's model on train.txt and writes weights.npz beside this file. Needs NumPy; minutes on two CPU
cores.

    python3 plots/measuring/swap/train.py [--steps 1600] [--out FILE]

AdamW (Loshchilov and Hutter 2019, algorithm 2) with a warm-up and a cosine decay, gradients clipped to norm 1.
"""

import io
import json
import math
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from plots.measuring.swap import model
from plots.script import OneLineParser, end_with, positive, read_text, write_whole

LAYERS, HEADS, HEAD_DIM, CONTEXT = 3, 2, 32, 256
RATE = 3e-3
BETAS, DECAY, WARM_UP = (0.9, 0.98), 0.1, 0.05  # the decay is of matrices alone, the warm-up a share of the steps


def initial_weights(characters, draw):
    """GPT-2's: normal with 0.02, the projections back into the residual stream less by sqrt(2 LAYERS)."""
    width = HEADS * HEAD_DIM
    normal = lambda *shape, sigma=0.02: draw.normal(0, sigma, shape).astype(np.float32)
    weights = {"token": normal(characters, width), "position": normal(CONTEXT, width)}
    residual = 0.02 / math.sqrt(2 * LAYERS)
    for layer in range(LAYERS):
        for n in (1, 2):
            weights |= {f"{layer}.norm{n}": np.ones(width, np.float32), f"{layer}.bias{n}": np.zeros(width, np.float32)}
        weights |= {
            f"{layer}.qkv": normal(width, 3 * width),
            f"{layer}.out": normal(width, width, sigma=residual),
            f"{layer}.up": normal(width, 4 * width),
            f"{layer}.down": normal(4 * width, width, sigma=residual),
        }
    last = {"norm": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}
    return weights | last | {"head": normal(width, characters)}


class AdamW:
    def __init__(self, weights):
        self.weights, self.step = weights, 0
        self.means = {name: np.zeros_like(w) for name, w in weights.items()}
        self.squares = {name: np.zeros_like(w) for name, w in weights.items()}

    def update(self, gradients, rate):
        self.step += 1
        norm = math.sqrt(sum(float(np.sum(g * g)) for g in gradients.values()))
        unbiased = [1 - beta**self.step for beta in BETAS]
        for name, w in self.weights.items():
            g = gradients[name] / max(1, norm)
            self.means[name] += (1 - BETAS[0]) * (g - self.means[name])
            self.squares[name] += (1 - BETAS[1]) * (g * g - self.squares[name])
            if w.ndim == 2:
                w *= 1 - rate * DECAY
            w -= rate / unbiased[0] * self.means[name] / (np.sqrt(self.squares[name] / unbiased[1]) + 1e-8)


def rate_at(step, steps, highest):
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return highest * (step + 1) / warm_up
    return highest / 2 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def text():
    """(config, the training text's tokens)."""
    train_text = read_text(model.FOLDER / "train.txt")
    config = {"layers": LAYERS, "heads": HEADS, "context": CONTEXT, "characters": "".join(sorted(set(train_text)))}
    return config, model.encode(train_text, config)


def training(attention, steps, batch=8, rate=RATE, seed=1, loss_scale=1):
    """Yields (step, its loss, the weights after it). The seed alone chooses the first weights and every batch."""
    config, tokens = text()
    draw = np.random.default_rng(seed)
    weights = initial_weights(len(config["characters"]), draw)
    optimizer = AdamW(weights)
    for step in range(1, steps + 1):
        starts = draw.integers(len(tokens) - CONTEXT, size=(batch, 1))
        pieces = tokens[starts + np.arange(CONTEXT + 1)]
        inputs, targets = pieces[:, :-1], pieces[:, 1:]
        _, loss, gradients = model.run(weights, config, inputs, targets, attention, loss_scale=loss_scale)
        optimizer.update(gradients, rate_at(step - 1, steps, rate))
        yield step, loss, weights


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument("--steps", type=positive, default=1600)
    parser.add_argument("--batch", type=positive, default=8)
    parser.add_argument("--rate", type=float, default=RATE, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=model.FOLDER / "weights.npz")
    options = parser.parse_args()
    parser.writable(options.out)

    config, _ = text()
    test = model.sequences(model.encode(read_text(model.FOLDER / "test.txt"), config), CONTEXT)
    how = (options.steps, options.batch, options.rate, options.seed)
    for step, loss, weights in training(model.EagerAttention, *how):
        if step % 100 == 0 or step == options.steps:
            _, of_test, _ = model.run(weights, config, *test, model.EagerAttention, gradients=False)
            print(f"step {step}: training loss {loss:.3f}, test loss {of_test:.3f} nats per character", flush=True)

    archive = io.BytesIO()
    np.savez_compressed(archive, config=np.array(json.dumps(config)), **weights)
    write_whole(options.out, archive.getvalue())
    print(f"{sum(w.size for w in weights.values())} weights, {options.out.stat().st_size} bytes in {options.out}")
    return 0


if __name__ == "__main__":
    end_with(main)
