"""Prompts of random token ids: never repeated, and free of ids that mean something to the engine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from day0.errors import InputError


def usable_token_ids(model: Path, vocab_size: int) -> Sequence[int]:
    """Ids that may stand in a random prompt: the tokenizer's ordinary entries, without special and added ones.

    A placeholder for an image, say, would make the engine look for one. A model without tokenizer.json
    offers all ids below `vocab_size`.

    Raises:
        InputError: tokenizer.json is malformed, or leaves too few ids.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        return range(vocab_size)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        added = {int(token["id"]) for token in content.get("added_tokens") or ()}
        # Unigram models list their entries, others map text to id.
        ids = range(len(vocabulary)) if isinstance(vocabulary, list) else [int(i) for i in vocabulary.values()]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be used: {type(error).__name__}: {error}") from error
    usable = sorted(i for i in ids if i not in added and 0 <= i < vocab_size)
    if len(usable) < 16:
        raise InputError(f"{path} offers {len(usable)} ordinary tokens below the vocabulary's size of {vocab_size}")
    return usable


class Prompts:
    """A seeded source of prompts, no two alike."""

    def __init__(self, token_ids: Sequence[int], seed: int) -> None:
        self.seed = seed
        self._ids = token_ids
        self._random = random.Random(seed)
        self._seen: set[tuple[int, ...]] = set()

    def fresh(self, length: int, prefix: tuple[int, ...] = ()) -> tuple[int, ...]:
        """A prompt of `length` tokens that begins with `prefix`, unlike any before."""
        while True:
            prompt = prefix + tuple(self._random.choices(self._ids, k=length - len(prefix)))
            if prompt not in self._seen:
                self._seen.add(prompt)
                return prompt
