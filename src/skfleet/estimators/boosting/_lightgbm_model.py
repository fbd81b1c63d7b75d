"""LightGBM's models as texts, which are joined, shortened and changed here."""

from __future__ import annotations

import re
from collections.abc import Sequence

import lightgbm

_TREE, _END = re.compile(r"^Tree=\d+\n", re.MULTILINE), "end of trees"


def join_models(first: str, second: str) -> str:
    """Return the model that predicts the sum of two models of the same rows."""
    trees = [*_parse(first)[1], *_parse(second)[1]]
    header, _, tail = _parse(second)
    # LightGBM counts the uses of features again, which are listed after the trees.
    return _normalize(_text_of(header, trees, tail))


def first_rounds(text: str, n_rounds: int) -> str:
    """Return the model of the first rounds."""
    return lightgbm.Booster(model_str=text).model_to_string(num_iteration=n_rounds)


def with_start(text: str, start: float) -> str:
    """Return the model with a number added to its predictions, in the first tree.

    That is where LightGBM itself has the mean that it starts from.
    """
    header, trees, tail = _parse(text)
    if not trees or start == 0.0:
        return text
    lines = []
    for line in trees[0].split("\n"):
        name, is_value, values = line.partition("=")
        if name in ("leaf_value", "internal_value") and values:
            form = repr if name == "leaf_value" else "{:g}".format
            values = " ".join(form(float(value) + start) for value in values.split(" "))
        elif name == "shrinkage":
            values = "1"
        lines.append(f"{name}{is_value}{values}")
    return _text_of(header, ["\n".join(lines), *trees[1:]], tail)


def with_parameters(text: str, values: dict[str, str]) -> str:
    """Return the model with other values of parameters that it lists."""
    for name, value in values.items():
        text = re.sub(
            rf"^\[{name}: .*\]$", lambda _, n=name, v=value: f"[{n}: {v}]", text, flags=re.MULTILINE
        )
    return text


def _parse(text: str) -> tuple[str, list[str], str]:
    """Return the lines before the trees, the trees, and what follows them."""
    end = text.index(_END)
    first = _TREE.search(text, 0, end)
    if first is None:
        return text[:end].rstrip("\n"), [], text[end:]
    trees = _TREE.split(text[first.start() : end])[1:]
    return text[: first.start()].rstrip("\n"), trees, text[end:]


def _text_of(header: str, trees: Sequence[str], tail: str) -> str:
    sections = [f"Tree={i}\n{tree}" for i, tree in enumerate(trees)]
    sizes = " ".join(str(len(section.encode())) for section in sections)
    header = re.sub(r"^tree_sizes=.*$", f"tree_sizes={sizes}", header, flags=re.MULTILINE)
    return f"{header}\n\n{''.join(sections)}{tail}"


def _normalize(text: str) -> str:
    return lightgbm.Booster(model_str=text).model_to_string(num_iteration=-1)
