"""A language model of hidden size 8 with and without scaling before attention: its loss, keys that no query selects.

Brody et al. 2023, figure 4 and tables 1 to 3: GPT-2 with 4 layers of 4 heads, whose norm before attention either
projects and scales or projects alone. Scaled keys of equal length are all selectable; many of the others are not, and
so are many Gaussian keys: every share stands beside that of as many Gaussian keys of the same dimension.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normscope.checks import Floats
from normscope.errors import InputError
from normscope.models.labelled_texts import read_labelled
from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve, rows_where
from normscope_lab.engine.verdicts import EXACT, Compared, decided, planned
from normscope_lab.loaders.data_files import place
from normscope_lab.loaders.plain_texts import text_files, whole_text
from normscope_lab.loaders.sentences import sentence_files
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.byte_pairs import learned_pairs
from normscope_lab.training.dropout import Dropout
from normscope_lab.training.key_inputs import (
    gaussian_like,
    in_percent,
    in_plane,
    near_ties,
    seen_by,
    share_of,
    shares,
    shares_by_seed,
    unselectable,
)
from normscope_lab.training.training_loop import best_device, descend, in_parts, linear_decay, train
from normscope_lab.training.transformer import Attention, Block, FeedForward, small_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from tokenizers import Tokenizer

PUBLISHED = 0.05  # by which the test loss is lower with scaling
NATS = " nats a token"
CHANCE = "chance"
SENTENCES = "sst2"
LONGEST = 128  # tokens of a sentence
BINS = (16, 32, 64, LONGEST)  # upper ends, of keys in a sentence
VARIANTS = ("with scaling", "without scaling")
EXPECTED = 0.016  # deviation of the differences in test loss in earlier runs
HELD_OUT = 0.1  # the last tenth of the text is the test set


class LanguageModel(nn.Module):
    """GPT-2, with the norm before attention of a variant, which has no gain, bias or biased keys as in the paper."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width, dropout = settings["width"], settings["dropout"]
        self.tokens = nn.Embedding(settings["vocabulary"], width)
        self.positions = nn.Embedding(settings["length"], width)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                Attention(width, settings["heads"], bias=False, dropout=dropout),
                FeedForward(width, 4 * width, nn.GELU("tanh")),
                Norm(width, scale=settings["variant"] == VARIANTS[0], affine=False),
                Norm(width),
                dropout,
            )
            for _ in range(settings["layers"])
        )
        self.norm = Norm(width)
        self.apply(small_weights)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.norm(self.hidden(tokens)) @ self.tokens.weight.T
        return scores

    def hidden(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x, causal=True)
        return x


class LanguageModelScaling(Experiment):
    what = "GPT-2 of hidden size 8 with and without scaling: loss curves, and unselectable keys in each layer"
    source = "Brody et al. 2023, fig. 4, tables 1-3"
    data = (
        "a text file, a folder of .txt files, or a folder with such a folder wikitext2; for table 3 a folder sst2 too"
    )
    seeds: ClassVar = {"quick": 10, "paper": 1}
    variants = VARIANTS
    paper: ClassVar = {
        "vocabulary": 50_257,
        "length": 1024,
        "width": 8,
        "layers": 4,
        "heads": 4,
        "dropout": 0.1,
        "batch": 16,
        "learning_rate": 5e-5,
        "steps": 50_000,
        "epoch": 100,
        "sequences": 100,
    }
    quick: ClassVar = {
        "vocabulary": 2000,
        "dropout": 0.0,
        "batch": 2,
        "learning_rate": 1e-2,
        "steps": 900,
    }

    def files(self, data: Path) -> list[Path]:
        return [*text_files(place(data, "wikitext2")), *_sentence_file(data)]

    def plan(self, settings: Settings, seeds: Sequence[int]) -> list[str]:
        return [
            planned("the test loss is lower with scaling", PUBLISHED, EXPECTED, len(seeds), NATS),
            "every share of unselectable keys beside that of as many Gaussian keys of the same dimension",
        ]

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        settings, device = cell.settings, best_device()
        tokenizer, *texts = tokens_of(place(cell.data or Path(), "wikitext2"), settings)
        training, held_out = (text.to(device) for text in texts)
        model = LanguageModel(settings).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], weight_decay=0.0)
        schedule = linear_decay(optimizer, settings["steps"])
        where: Row = {"variant": settings["variant"], "seed": cell.seed}

        def epoch(number: int) -> list[Row]:
            model.train()
            losses = []
            for _ in range(settings["epoch"]):
                starts = torch.randint(len(training) - settings["length"], (settings["batch"],)).to(device)
                batch = training[starts[:, None] + torch.arange(settings["length"] + 1, device=device)]
                loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
                losses.append(descend(loss, optimizer, schedule))
            step = (number + 1) * settings["epoch"]
            return [{**where, "step": step, "loss": float(np.mean(losses)), "test_loss": loss_on(model, held_out)}]

        rows = train(state, (model, optimizer, schedule), settings["steps"] // settings["epoch"], epoch)
        sentences = [
            tokenizer.encode(text).ids[: min(LONGEST, settings["length"])]
            for path in _sentence_file(cell.data or Path())
            for text in read_labelled(path)[0]
        ]
        found = judged(model, held_out[:, :-1], cell.seed) + judged_sentences(model, sentences, cell.seed)
        return rows + [{**where, **row} for row in found]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        kept = ", ".join(name for name in settings["data"] if not name.endswith(".tsv"))
        differences = self.differences(
            settings,
            rows,
            f"trained on {kept} and judged on its last tenth (the paper: Wikipedia, SQuAD), gradients not clipped and "
            "residual layers begun like the others (the paper: clipped at length 1, begun smaller)",
            *(
                "with another vocabulary a nat a token is another unit"
                for _ in range(settings["vocabulary"] != self.paper["vocabulary"])
            ),
        )
        judged = [row for row in rows if row.get("at")]
        certified = all(row["certificates_hold"] for row in judged)
        share = {
            (variant, at): shares(judged, settings["layers"], variant=variant, at=at)
            for variant in VARIANTS
            for at in ("input", "output")
        }
        beside = {at: _beside(judged, f"{at}, {CHANCE}") for at in ("input", "output")}
        last = max(row["step"] for row in rows if row.get("step"))  # type: ignore[type-var]
        losses = [column(rows, "test_loss", variant=variant, step=last) for variant in VARIANTS]
        worse = paired_difference(losses[1], losses[0])
        rule = "of all seeds together, every verdict certified and the certificates checked"
        claims = [
            Compared(
                "with scaling, the test loss is lower",
                "about 7.33 with, 7.38 without",
                f"{np.mean(losses[0]):.3f} with, {np.mean(losses[1]):.3f} without; lower by {worse}",
                worse,
                PUBLISHED,
                NATS,
            )
        ]
        if beside["output"]:
            claims.append(self._above_chance(judged))
        return [
            Finding(
                "with scaling, every key before attention is selectable",
                "0, 0, 0, 0 (layers 1 to 4)",
                in_percent(share[VARIANTS[0], "output"]) + near_ties(judged, variant=VARIANTS[0], at="output"),
                max(share[VARIANTS[0], "output"]) == 0 and certified,
                f"no unselectable key in any layer {rule}",
                differences,
                EXACT,
            ),
            Finding(
                "trained without scaling, some keys in every layer are unselectable",
                "51.0%, 32.2%, 34.7%, 36.8%",
                in_percent(share[VARIANTS[1], "output"])
                + beside["output"]
                + near_ties(judged, variant=VARIANTS[1], at="output"),
                min(share[VARIANTS[1], "output"]) > 0 and certified,
                f"some in each layer, {rule}",
                differences,
                EXACT,
            ),
            Finding(
                "with scaling, it is the norm that makes them selectable: some of its inputs are not",
                "inputs 44.8%, 28.5%, 22.3%, 26.1%; outputs 0, 0, 0, 0",
                f"inputs {in_percent(share[VARIANTS[0], 'input'])}; outputs {in_percent(share[VARIANTS[0], 'output'])}"
                + beside["input"]
                + near_ties([row for row in judged if row["at"] in ("input", "output")], variant=VARIANTS[0]),
                min(share[VARIANTS[0], "input"]) > 0 and max(share[VARIANTS[0], "output"]) == 0 and certified,
                f"some inputs and no outputs in each layer, {rule}",
                differences,
                EXACT,
            ),
            self._on_sentences(settings, judged, certified, rule, differences),
            *decided(claims, differences),
        ]

    def _above_chance(self, judged: Sequence[Row]) -> Compared:
        """Whether training makes more keys unselectable than there are among Gaussian ones."""
        ours, chance = (
            [100 * each for each in shares_by_seed(judged, variant=VARIANTS[1], at=at)]
            for at in ("output", f"output, {CHANCE}")
        )
        more = paired_difference(ours, chance)
        return Compared(
            "trained without scaling, more keys are unselectable than among as many Gaussian keys",
            "not in the paper",
            f"{np.mean(ours):.1f}% in all layers, {np.mean(chance):.1f}% by chance; more by {more} points",
            more,
            unit=" points",
        )

    def _on_sentences(
        self, settings: Settings, judged: Sequence[Row], certified: bool, rule: str, differences: str
    ) -> Finding:
        """Table 3: the model trained without scaling, on sentences of SST-2."""
        sentences = rows_where(judged, variant=VARIANTS[1], at="sentence")
        share = shares(sentences, settings["layers"]) if sentences else []
        by_length = ", ".join(
            f"{least + 1} to {most} keys {100 * share_of(sentences, most=most):.1f}% "
            f"({100 * share_of(judged, variant=VARIANTS[1], at=f'sentence, {CHANCE}', most=most):.1f}%)"
            for least, most in zip((0, *BINS), BINS, strict=False)
            if share_of(sentences, most=most) >= 0  # some sentence has that many
        )
        return Finding(
            "and on sentences of SST-2 too (table 3)",
            "some in every layer; its figures are not known here",
            f"{in_percent(share)} in layers 1 to {settings['layers']}{_beside(judged, f'sentence, {CHANCE}')}; in all "
            f"layers, by the number of keys, in brackets by chance: {by_length}"
            if sentences
            else "not scored",
            min(share) > 0 and certified if sentences else None,
            f"some in each layer, {rule}",
            f"{differences}; sentences of {', '.join(name for name in settings['data'] if name.endswith('.tsv'))} "
            "(the paper's code: GLUE's test sentences, and the mean of their shares; here all keys count alike)"
            if sentences
            else differences,
            EXACT if sentences else "none: no sentences",
            "" if sentences else f"sentences: a folder {SENTENCES} in --data",
        )

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4.1), dpi=150, layout="constrained")
        training, test, keys = figure.subplots(1, 3)
        for variant in VARIANTS:
            draw_curve(training, rows, "step", "loss", variant, variant=variant)
            draw_curve(test, rows, "step", "test_loss", variant, variant=variant)
        for ax, what in ((training, "training"), (test, "test")):
            ax.set(xlabel="steps", ylabel=f"{what} loss (nats a token)")
            ax.grid(alpha=0.3)
            ax.legend()
        judged = [row for row in rows if row.get("at")]
        for at, style in (("output", "--"), ("input", ":")):
            chance = share_of(judged, at=f"{at}, {CHANCE}")
            if chance >= 0:
                keys.axhline(100 * chance, color="gray", linestyle=style, label=f"Gaussian keys like the {at}")
        layers = np.arange(1, settings["layers"] + 1)
        drawn = [(VARIANTS[1], "output", "C1"), (VARIANTS[0], "input", "lightsteelblue"), (VARIANTS[0], "output", "C0")]
        for number, (variant, at, colour) in enumerate(drawn):
            values = 100 * np.array(shares(judged, settings["layers"], variant=variant, at=at))
            where = layers + 0.27 * (number - 1)
            bars = keys.bar(where, values, width=0.25, color=colour, label=f"{variant}, {at} of the norm")
            keys.bar_label(bars, [f"{value:.0f}" for value in values], fontsize=7)
        keys.set(xlabel="layer", ylabel="unselectable keys (%)", xticks=layers)
        figure.legend(*keys.get_legend_handles_labels(), fontsize=8, ncols=5, loc="outside lower center")
        figure.suptitle(f"A language model of hidden size {settings['width']} with and without scaling: {BANDS}")
        return {"language-model": figure}


def tokens_of(data: Path, settings: Settings) -> tuple["Tokenizer", Tensor, Tensor]:
    """A tokenizer, the training text as one line of tokens, and sequences of the held-out text (…, length + 1)."""
    text = whole_text(data)
    parting = int(len(text) * (1 - HELD_OUT))
    tokenizer = learned_pairs(text[:parting].splitlines(keepends=True), settings["vocabulary"])
    training, held_out = (torch.tensor(tokenizer.encode(part).ids) for part in (text[:parting], text[parting:]))
    size = settings["length"] + 1
    if len(held_out) < size:
        raise InputError(f"{data}: the last tenth must have {size} tokens or more, got {len(held_out)}: a longer text")
    return tokenizer, training, held_out[: len(held_out) // size * size].view(-1, size)[: settings["sequences"]]


@torch.no_grad()
def loss_on(model: LanguageModel, held_out: Tensor) -> float:
    model.eval()
    losses = [
        cross_entropy(model(given).flatten(0, 1), following.flatten(), reduction="sum").item()
        for given, following in in_parts(held_out[:, :-1], held_out[:, 1:], 16)
    ]
    return sum(losses) / held_out[:, 1:].numel()


@torch.no_grad()
def judged(model: LanguageModel, tokens: Tensor, seed: int) -> list[Row]:
    """For each layer, the keys before and after its norm that no query selects, each against all of its sequence.

    Then as many Gaussian keys, of as many dimensions as the keys before and after the norm have.
    """
    seen = _seen(model, tokens)
    rows: list[Row] = [
        {"layer": layer, "at": at, **unselectable([keys])}
        for layer, pair in enumerate(seen, start=1)
        for at, keys in zip(("input", "output"), pair, strict=True)
    ]
    for at, keys in zip(("input", "output"), seen[0], strict=True):
        rows.append({"at": f"{at}, {CHANCE}", **unselectable(gaussian_like([keys], keys.shape[-1], seed))})
    return rows


@torch.no_grad()
def judged_sentences(model: LanguageModel, sentences: Sequence[list[int]], seed: int) -> list[Row]:
    """For each layer, the keys of sentences that no query selects, by the number of keys; and as many Gaussian ones."""
    by_length: dict[int, list[list[int]]] = {}
    for sentence in sentences:
        if sentence:
            by_length.setdefault(len(sentence), []).append(sentence)
    device = model.tokens.weight.device
    rows: list[Row] = []
    for least, most in zip((0, *BINS), BINS, strict=False):
        batches = [torch.tensor(same, device=device) for size, same in by_length.items() if least < size <= most]
        if not batches:
            continue
        seen = [[output for _, output in _seen(model, batch)] for batch in batches]
        layers = [list(sets) for sets in zip(*seen, strict=True)]
        rows += [
            {"layer": layer, "at": "sentence", "most": most, **unselectable(sets)}
            for layer, sets in enumerate(layers, start=1)
        ]
        chance = gaussian_like(layers[0], layers[0][0].shape[-1], seed)
        rows.append({"at": f"sentence, {CHANCE}", "most": most, **unselectable(chance)})
    return rows


def _seen(model: LanguageModel, tokens: Tensor) -> list[tuple[Floats, Floats]]:
    """For each layer, the keys before its norm, and after it in the plane in which they lie."""
    model.eval()
    seen = seen_by((block.get_submodule("norm1") for block in model.blocks), lambda: model.hidden(tokens))
    return [(given, in_plane(output)) for given, output in seen]


def _beside(judged: Sequence[Row], at: str) -> str:
    """The share by chance, in words; empty for runs that did not have it."""
    chance = share_of(judged, at=at)
    return f"; as many Gaussian keys {100 * chance:.1f}%" if chance >= 0 else ""


def _sentence_file(data: Path) -> list[Path]:
    """The sentences that are judged, if they are there."""
    return sentence_files(data / SENTENCES)[1:] if (data / SENTENCES).is_dir() else []
