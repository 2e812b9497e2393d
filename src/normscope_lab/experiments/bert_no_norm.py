"""BERT of hidden size 8 trained without LayerNorm: how many keys of each layer no query selects.

Brody et al. 2023, table 4: 4 layers of 4 heads, trained on SST-2 with every LayerNorm left out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normscope.checks import shortened
from normscope.errors import InputError
from normscope.models.labelled_texts import read_labelled
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve, rows_where
from normscope_lab.engine.verdicts import EXACT
from normscope_lab.loaders.data_files import place
from normscope_lab.loaders.sentences import sentence_files
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.byte_pairs import learned_pairs
from normscope_lab.training.dropout import Dropout
from normscope_lab.training.key_inputs import (
    gaussian_like,
    in_percent,
    seen_by,
    share_of,
    shares,
    shares_by_seed,
    unselectable,
)
from normscope_lab.training.training_loop import best_device, descend, hits, linear_decay, padded, shuffled, train
from normscope_lab.training.transformer import Attention, Block, FeedForward, small_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECIAL = ("<pad>", "<class>")
PAD, CLASS = range(len(SPECIAL))
CHANCE = "Gaussian keys"


class Bert(nn.Module):
    """BERT's encoder without norms: where they were, there is nothing. The first token is classified."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width, dropout = settings["width"], settings["dropout"]
        self.tokens = nn.Embedding(settings["vocabulary"], width, padding_idx=PAD)
        self.positions = nn.Embedding(settings["length"], width)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                Attention(width, settings["heads"], dropout=dropout),
                FeedForward(width, settings["hidden"], nn.GELU()),
                nn.Identity(),
                nn.Identity(),
                dropout,
            )
            for _ in range(settings["layers"])
        )
        self.pooled = nn.Linear(width, width)
        self.head = nn.Linear(width, settings["labels"])
        self.apply(lambda module: small_weights(module, settings["deviation"]))

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != PAD
        x = self.dropout(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x, allowed=there)
        scores: Tensor = self.head(self.dropout(torch.tanh(self.pooled(x[:, 0]))))
        return scores


class BertWithoutNorm(Experiment):
    what = "unselectable keys in each layer of a BERT trained without LayerNorm"
    source = "Brody et al. 2023, table 4"
    data = "a folder with a *train*.tsv and a *dev*.tsv of sentences, tabs and labels, or with such a folder sst2"
    seeds: ClassVar = {"quick": 3, "paper": 1}
    variants = ("without LayerNorm",)
    paper: ClassVar = {
        "vocabulary": 28_996,
        "length": 128,
        "width": 8,
        "layers": 4,
        "heads": 4,
        "hidden": 3072,
        "labels": 2,
        "deviation": 0.02,
        "dropout": 0.1,
        "batch": 32,
        "learning_rate": 5e-5,
        "epochs": 100,
    }
    quick: ClassVar = {
        "vocabulary": 4000,
        "hidden": 32,
        "deviation": 0.2,
        "dropout": 0.0,
        "learning_rate": 3e-3,
        "epochs": 10,
    }

    def files(self, data: Path) -> list[Path]:
        return sentence_files(place(data, "sst2"))

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        settings, device = cell.settings, best_device()
        training, test = (read_labelled(path) for path in sentence_files(place(cell.data or Path(), "sst2")))
        tokenizer = learned_pairs(training[0], settings["vocabulary"], SPECIAL)
        names = sorted(set(training[1]))
        if len(names) != settings["labels"] or not set(test[1]) <= set(names):
            raise InputError(
                f"there must be {settings['labels']} labels, the same in both files, got "
                f"{shortened(', '.join(names), 100)} to train with and "
                f"{shortened(', '.join(sorted(set(test[1]))), 100)} to test with"
            )
        (x_train, y_train), (x_test, y_test) = (
            (
                [[CLASS, *each.ids][: settings["length"]] for each in tokenizer.encode_batch(texts)],
                torch.tensor([names.index(label) for label in labels]).to(device),
            )
            for texts, labels in (training, test)
        )
        model = Bert(settings).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], weight_decay=0.0)
        schedule = linear_decay(optimizer, settings["epochs"] * -(-len(x_train) // settings["batch"]))
        where: Row = {"variant": settings["variant"], "seed": cell.seed}

        def epoch(number: int) -> list[Row]:
            model.train()
            losses = []
            for batch in shuffled(len(x_train), settings["batch"]):
                tokens = padded([x_train[place_] for place_ in batch.tolist()], PAD).to(device)
                loss = cross_entropy(model(tokens), y_train[batch])
                losses.append(descend(loss, optimizer, schedule))
            accuracy = accuracy_of(model, x_test, y_test)
            return [{**where, "epoch": number + 1, "loss": float(np.mean(losses)), "test_accuracy": accuracy}]

        rows = train(state, (model, optimizer, schedule), settings["epochs"], epoch)
        return rows + [{**where, **row} for row in judged(model, x_test, cell.seed)]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        judged = [row for row in rows if row.get("layer")]
        share = shares(judged, settings["layers"])
        accuracy = np.mean(column(rows, "test_accuracy", epoch=settings["epochs"]))
        certified = all(row["certificates_hold"] for row in judged)
        chance = share_of(rows, at=CHANCE)
        beside = ""
        if chance >= 0:
            ours, theirs = (shares_by_seed(part) for part in (judged, rows_where(rows, at=CHANCE)))
            more = paired_difference([100 * each for each in ours], [100 * each for each in theirs])
            beside = f"; as many Gaussian keys {100 * chance:.1f}%"
            if np.isfinite(more.mean):  # no seed diverged
                beside += f", all layers more by {more} points"
        return [
            Finding(
                "a BERT trained without LayerNorm has unselectable keys",
                "unselectable keys in each layer (table 4; its figures are not known here)",
                f"{in_percent(share)} in layers 1 to {settings['layers']}{beside}; test accuracy {100 * accuracy:.1f}%",
                min(share) > 0 and certified,
                "some in each layer of all seeds together, every verdict certified and the certificates checked",
                self.differences(
                    settings,
                    rows,
                    f"trained on {', '.join(settings['data'])}, each key against all of its own sentence of the test "
                    "set, own byte pairs (the paper: SST-2 of GLUE, with its phrases, BERT's tokens), gradients not "
                    "clipped (the paper: at length 1)",
                ),
                EXACT,
            )
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.8), dpi=150, layout="constrained")
        accuracy, keys = figure.subplots(1, 2)
        draw_curve(accuracy, rows, "epoch", "test_accuracy", "test accuracy")
        accuracy.set(xlabel="epochs", ylabel="test accuracy")
        accuracy.set_title(BANDS, fontsize=9)
        accuracy.grid(alpha=0.3)
        layers = range(1, settings["layers"] + 1)
        judged = [row for row in rows if row.get("layer")]
        keys.bar(layers, [100 * share for share in shares(judged, settings["layers"])], width=0.5)
        keys.set(xlabel="layer", ylabel="unselectable keys (%)", xticks=layers)
        title = "all seeds together"
        if (chance := share_of(rows, at=CHANCE)) >= 0:
            keys.axhline(100 * chance, color="black", linestyle="--")
            title += "; dashed: as many Gaussian keys"
        keys.set_title(title, fontsize=9)
        figure.suptitle("A BERT trained without LayerNorm, on sentences about films")
        return {"bert-no-norm": figure}


@torch.no_grad()
def accuracy_of(model: Bert, sentences: Sequence[list[int]], labels: Tensor) -> float:
    model.eval()
    scores = [
        model(padded(sentences[begin : begin + 100], PAD).to(labels.device)) for begin in range(0, len(sentences), 100)
    ]
    return hits(torch.cat(scores), labels).mean().item()


@torch.no_grad()
def judged(model: Bert, sentences: Sequence[list[int]], seed: int) -> list[Row]:
    """For each layer, the inputs of its attention that no query selects, each against all of its sentence.

    Then as many Gaussian keys.
    """
    model.eval()
    device = model.head.weight.device
    by_length: dict[int, list[list[int]]] = {}
    for sentence in sentences:
        by_length.setdefault(len(sentence), []).append(sentence)
    places = [block.get_submodule("norm1") for block in model.blocks]
    seen = [
        [keys for _, keys in seen_by(places, lambda same=same: model(torch.tensor(same, device=device)))]  # type: ignore[misc]
        for same in by_length.values()
    ]
    rows: list[Row] = [
        {"layer": layer, **unselectable(list(sets))} for layer, sets in enumerate(zip(*seen, strict=True), start=1)
    ]
    chance = gaussian_like([sets[0] for sets in seen], seen[0][0].shape[-1], seed)
    return [*rows, {"at": CHANCE, **unselectable(chance)}]
