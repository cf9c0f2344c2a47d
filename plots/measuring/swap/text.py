#!/usr/bin/env python3
"""Writes the texts that the swap check's model is trained and tested on: train.txt and test.txt beside this file.

    python3 plots/measuring/swap/text.py

Small scenes from a grammar of our own. Each scene names things, their colours and their places, and later asks for them
or says a sentence again: what comes next stands some hundred characters further back, which is what attention is for.
The test set holds no scene of the training set."""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from plots.script import end_with, write_whole

PEOPLE = "Ada Bruno Clara Dimitri Elena Farid Greta Hugo Ines Jonas Kira Leo Mira Nils Olga Pavel Rosa Samir Tilda Yusuf".split()
THINGS = "key lamp book clock coin letter map ring rope kettle basket drum mirror candle ladder compass bottle ribbon".split()
COLOURS = "red blue green yellow white black silver brown grey golden".split()
PLACES = [
    "in the tower",
    "under the bridge",
    "behind the mill",
    "on the long table",
    "at the harbour",
    "in the old garden",
    "beside the well",
    "near the north gate",
    "in the attic",
    "on the roof",
    "at the station",
    "below the stairs",
]
WEATHER = [
    "It rained all morning.",
    "The wind came from the sea.",
    "Snow lay on the road.",
    "The sun was low and warm.",
    "Fog hid the hills.",
    "The evening was quiet.",
    "Frost covered the windows.",
]
SAYINGS = [
    "what is moved costs more than what is counted",
    "a short way is not always a quick one",
    "keep near you what you need often",
    "who carries less walks further",
    "read once and remember",
    "a full shelf hides an empty one",
    "count twice before you carry",
    "the last row is as true as the first",
    "nothing is lost that can be found again",
]
VERBS = ["keeps", "hides", "leaves", "forgets", "finds"]


def scene(draw):
    """One paragraph."""
    first, second = draw.sample(PEOPLE, 2)
    items = draw.sample([(colour, thing) for colour in COLOURS for thing in THINGS], 3)
    places = draw.sample(PLACES, 3)
    owners = [first, second, draw.choice([first, second])]
    said = draw.choice(SAYINGS)
    lines = [draw.choice(WEATHER)]
    lines += [
        f"{owner} {draw.choice(VERBS)} the {colour} {thing} {place}."
        for owner, (colour, thing), place in zip(owners, items, places)
    ]
    lines.append(f'"{said.capitalize()}," says {draw.choice([first, second])}.')
    for n in draw.sample(range(3), 2):
        colour, thing = items[n]
        lines.append(
            draw.choice(
                [
                    f"Where is the {colour} {thing}? The {colour} {thing} is {places[n]}.",
                    f"Who went {places[n]}? {owners[n]} went {places[n]} with the {colour} {thing}.",
                    f"What is {places[n]}? The {colour} {thing} is {places[n]}, and {owners[n]} knows it.",
                ]
            )
        )
    a, b = draw.randint(2, 40), draw.randint(2, 40)
    lines.append(
        draw.choice(
            [
                f'{second} says it again: "{said.capitalize()}."',
                f"{first} counts {a} steps and then {b} more, {a + b} in all.",
                f"So {first} takes the {items[0][0]} {items[0][1]}, and {second} takes the {items[1][0]} {items[1][1]}.",
            ]
        )
    )
    return " ".join(lines)


def text(seed, size, without=()):
    """Paragraphs of at least `size` characters in all, none of which is in `without`."""
    draw, scenes, length = random.Random(seed), [], 0
    while length < size:
        paragraph = scene(draw)
        if paragraph in without or paragraph in scenes:
            continue
        scenes.append(paragraph)
        length += len(paragraph) + 2
    return scenes


def main():
    folder = pathlib.Path(__file__).resolve().parent
    train = text(seed=1, size=90_000)
    test = text(seed=2, size=9_000, without=train)
    write_whole(folder / "train.txt", "\n\n".join(train) + "\n")
    write_whole(folder / "test.txt", "\n\n".join(test) + "\n")
    return 0


if __name__ == "__main__":
    end_with(main)
