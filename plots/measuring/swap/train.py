#!/usr/bin/env python3
"""Trains the swap check's model on train.txt and writes weights.npz beside this file. Needs PyTorch; minutes on two CPU cores.

    python3 plots/swap/train.py [--steps 1600] [--out FILE]
"""
import argparse
import json
import pathlib
import sys

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from model import FOLDER, encode, sequences
from model_torch import eager_attention, logits_of, loss_of

LAYERS, HEADS, HEAD_DIM, CONTEXT = 3, 2, 32, 256


def initial_weights(characters, generator):
    """GPT-2's: normal with 0.02, the projections back into the residual stream less by sqrt(2 LAYERS)."""
    width = HEADS * HEAD_DIM
    normal = lambda *shape, sigma=0.02: torch.randn(*shape, generator=generator) * sigma
    weights = {"token": normal(characters, width), "position": normal(CONTEXT, width)}
    for layer in range(LAYERS):
        residual = 0.02 / (2 * LAYERS) ** 0.5
        for n in (1, 2):
            weights[f"{layer}.norm{n}"], weights[f"{layer}.bias{n}"] = torch.ones(width), torch.zeros(width)
        weights |= {f"{layer}.qkv": normal(width, 3 * width), f"{layer}.out": normal(width, width, sigma=residual),
                    f"{layer}.up": normal(width, 4 * width), f"{layer}.down": normal(4 * width, width, sigma=residual)}
    return weights | {"norm": torch.ones(width), "bias": torch.zeros(width), "head": normal(width, characters)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate of AdamW")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER / "weights.npz")
    options = parser.parse_args()

    train_text = (FOLDER / "train.txt").read_text()
    config = {"layers": LAYERS, "heads": HEADS, "context": CONTEXT, "characters": "".join(sorted(set(train_text)))}
    train = torch.from_numpy(encode(train_text, config))
    test_inputs, test_targets = (torch.from_numpy(x) for x in sequences(encode((FOLDER / "test.txt").read_text(), config), CONTEXT))

    generator = torch.Generator().manual_seed(options.seed)
    weights = {name: w.requires_grad_() for name, w in initial_weights(len(config["characters"]), generator).items()}
    matrices = [w for w in weights.values() if w.dim() == 2]
    vectors = [w for w in weights.values() if w.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=options.steps, pct_start=0.05)
    for step in range(options.steps):
        starts = torch.randint(len(train) - CONTEXT, (options.batch, 1), generator=generator)
        pieces = train[starts + torch.arange(CONTEXT + 1)]
        loss = loss_of(logits_of(weights, config, pieces[:, :-1], eager_attention), pieces[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0 or step + 1 == options.steps:
            with torch.no_grad():
                test = loss_of(logits_of(weights, config, test_inputs, eager_attention), test_targets)
            print(f"step {step + 1}: training loss {loss.item():.3f}, test loss {test.item():.3f} nats per character", flush=True)

    arrays = {name: w.detach().numpy() for name, w in weights.items()}
    np.savez_compressed(options.out, config=np.array(json.dumps(config)), **arrays)
    print(f"{sum(a.size for a in arrays.values())} weights, {options.out.stat().st_size} bytes in {options.out}")


if __name__ == "__main__":
    main()
