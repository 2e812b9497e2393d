"""Translation from German to English with LN and with LN-G.

Ni et al. 2024: a transformer on IWSLT14, BLEU 35.01 ± 0.10 with LN and 35.23 ± 0.07 with LN-G. How many channels its
groups have is not known here: the size is chosen by the likelihood of validation pairs, then judged by BLEU as well.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from normscope.errors import InputError
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.choosing import choosing_seeds, chosen, stage_cells
from normscope_lab.engine.experiment import CHOOSING, JUDGING, Cell, Experiment, Settings, require_fitting
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import Row, column, rows_where
from normscope_lab.engine.verdicts import Compared, decided, not_inferior, planned
from normscope_lab.loaders.data_files import place
from normscope_lab.loaders.parallel import parallel_files, read_parallel
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.byte_pairs import learned_pairs
from normscope_lab.training.group_sizes import (
    LN,
    LNG,
    at_end,
    best_size,
    choice_shown,
    drawn_sizes,
    judged_sizes,
    of_size,
    size_variants,
    sizes_tried,
)
from normscope_lab.training.token_loss import token_loss
from normscope_lab.training.training_loop import best_device, descend, padded, root_decay, train
from normscope_lab.training.translation_model import BEGIN, END, LONGEST, PAD, SPECIAL, Translator, translated

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from tokenizers import Tokenizer

PUBLISHED = 0.22  # BLEU by which LN-G is better
UNIT = " BLEU"
FOLDER = "multi30k_de_en"
Batch = tuple[Tensor, Tensor]  # source and target, (sentences, tokens) each


class TranslationGroups(Experiment):
    what = "a transformer from German to English with LN and LN-G, by BLEU"
    source = "Ni et al. 2024"
    data = f"a folder with train.de, train.en, val.de, …, test.en (.gz too), or a folder with such a folder {FOLDER}"
    seeds: ClassVar = {"quick": 10, "paper": 10}
    first_seed = 100
    paper: ClassVar = {
        "pairs": 160_000,
        "vocabulary": 10_000,
        "width": 512,
        "layers": 6,
        "heads": 4,
        "hidden": 1024,
        "group_channels": [8, 16, 32],
        "norm_first": False,
        "dropout": 0.3,
        "smoothing": 0.1,
        "batch": 160,
        "learning_rate": 5e-4,
        "warmup": 4000,
        "weight_decay": 1e-4,
        "epochs": 50,
        "beam": 5,
        "choosing_seeds": 3,
        "margin": 0.5,
        "expected_deviation": 0.55,
    }
    unpublished: ClassVar = (*paper, "seeds")
    quick: ClassVar = {
        "pairs": 29_000,
        "vocabulary": 4000,
        "width": 96,
        "layers": 2,
        "hidden": 192,
        "dropout": 0.1,
        "batch": 128,
        "learning_rate": 2e-3,
        "warmup": 500,
        "epochs": 16,
    }

    def files(self, data: Path) -> list[Path]:
        return parallel_files(place(data, FOLDER), "de", "en")

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        require_fitting(settings)
        return stage_cells(CHOOSING, settings, choosing_seeds(settings), size_variants(settings))

    def later(self, settings: Settings, seeds: Sequence[int], rows: Sequence[Row]) -> list[Cell]:
        sizes = settings["group_channels"]
        size = chosen(at_end(rows, settings), sizes, "channels", "validation_loss", least=True, variant=LNG)
        return stage_cells(JUDGING, settings, seeds, judged_sizes(size))

    def plan(self, settings: Settings, seeds: Sequence[int]) -> list[str]:
        spread, count = settings["expected_deviation"], len(seeds)
        return [
            planned("LN-G translates better", PUBLISHED, spread, count, UNIT),
            planned("LN-G is not worse by the margin", settings["margin"], spread, count, UNIT),
            f"{sizes_tried(settings)}, by the likelihood of the validation pairs; judged by the 95% intervals of the "
            "paired differences in BLEU and in that likelihood",
        ]

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        require_sacrebleu()  # before hours of training, not after
        settings, device = cell.settings, best_device()
        splits = read_parallel(place(cell.data or Path(), FOLDER), "de", "en")
        german, english = (side[: settings["pairs"]] for side in splits["train"])
        tokenizer = learned_pairs([*german, *english], settings["vocabulary"], SPECIAL)
        batches, held_out = (
            [
                (source.to(device), target.to(device))
                for source, target in in_batches(
                    tokens_of(tokenizer, sources), tokens_of(tokenizer, targets), settings["batch"]
                )
            ]
            for sources, targets in ((german, english), splits["val"])
        )
        model = Translator(tokenizer.get_vocab_size(), settings).to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings["learning_rate"],
            betas=(0.9, 0.98),
            weight_decay=settings["weight_decay"],
        )
        schedule = root_decay(optimizer, settings["warmup"])
        where: Row = {name: settings[name] for name in ("stage", "variant", "channels")}
        where |= {"seed": cell.seed, "pairs": len(german)}

        def epoch(number: int) -> list[Row]:
            model.train()
            losses = []
            for place_ in torch.randperm(len(batches)).tolist():
                source, target = batches[place_]
                hidden, table = model.decode(target[:, :-1], *model.encode(source)), model.embedding.weight
                loss = token_loss(hidden, table, target[:, 1:], filler=PAD, smoothing=settings["smoothing"])
                losses.append(descend(loss, optimizer, schedule))
            return [
                {
                    **where,
                    "epoch": number + 1,
                    "loss": float(np.mean(losses)),
                    "validation_loss": loss_on(model, held_out),
                }
            ]

        rows = train(state, (model, optimizer, schedule), settings["epochs"], epoch)
        if settings["stage"] == CHOOSING:
            return rows
        tested, references = splits["test"]
        answers = translations(model, tokens_of(tokenizer, tested), settings)
        score = bleu([tokenizer.decode(answer) for answer in answers], references)
        diverged = not np.isfinite(float(rows[-1]["loss"] or 0))
        return [*rows[:-1], {**rows[-1], "test_pairs": len(tested), "bleu": float("nan") if diverged else score}]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        size, judging = best_size(rows), rows_where(rows, stage=JUDGING)
        scores = [column(judging, "bleu", variant=variant) for variant in (LN, LNG)]
        losses = [
            column(judging, "validation_loss", variant=variant, epoch=settings["epochs"]) for variant in (LN, LNG)
        ]
        better = paired_difference(scores[1], scores[0])
        means = [
            f"{np.mean(each):.2f} ± {np.std(each, ddof=1):.2f}" if len(each) > 1 else f"{each[0]:.2f}"
            for each in scores
        ]
        ours = f"{means[0]} with LN, {means[1]} with {of_size(size)}; better by {better}"
        claims = [
            Compared(
                f"{of_size(size)} translates better than LN",
                "BLEU 35.01 ± 0.10 with LN, 35.23 ± 0.07 with LN-G",
                ours,
                better,
                PUBLISHED,
                UNIT,
            )
        ]
        if losses[0]:
            likelier = paired_difference(losses[0], losses[1])
            claims.append(
                Compared(
                    f"{of_size(size)} finds validation pairs more likely than LN",
                    "not stated",
                    f"{np.mean(losses[0]):.4f} nats a token with LN, {np.mean(losses[1]):.4f} with {of_size(size)}; "
                    f"fewer by {likelier}{choice_shown(at_end(rows, settings), 'validation_loss', '.4f')}",
                    likelier,
                    unit=" nats a token",
                )
            )
        pairs, tested = (max(int(row.get(name) or 0) for row in judging) for name in ("pairs", "test_pairs"))
        differences = self.differences(
            settings,
            rows,
            f"trained on {pairs:,} pairs and tested on {tested:,}, of the files {', '.join(settings['data'])} "
            "(the paper: IWSLT14, 160,000 and 6,750), BLEU of sacrebleu, cased, after the last epoch "
            "(the paper: fairseq's); one table of embeddings for both languages"
            + ", dropout inside attention and feed-forward as well" * (settings["dropout"] > 0)
            + "; preset paper has the sizes and the training of fairseq's recipe for the paper's data",
            sizes_tried(settings),
        )
        return [
            *decided(claims, differences),
            *(
                not_inferior(f"{of_size(size)} is not worse than LN", ours, better, margin, UNIT, differences)
                for margin in [settings.get("margin")]
                if margin is not None  # earlier runs fixed none
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        figure = drawn_sizes(
            rows,
            settings,
            "training loss (nats a token)",
            ("validation_loss", "validation loss, choosing (nats a token)"),
            ("bleu", "BLEU"),
        )
        figure.suptitle("From German to English with LN and LN-G")
        return {"translation": figure}


def tokens_of(tokenizer: "Tokenizer", sentences: Sequence[str]) -> list[list[int]]:
    """The tokens of each sentence, as many as the network has positions for, BEGIN and END included."""
    return [each.ids[: LONGEST - 2] for each in tokenizer.encode_batch(list(sentences))]


def in_batches(sources: Sequence[list[int]], targets: Sequence[list[int]], size: int) -> list[Batch]:
    """Pairs of like length together, padded; targets between BEGIN and END."""
    order = sorted(range(len(sources)), key=lambda place: (len(sources[place]), len(targets[place])))
    return [
        (
            padded([sources[place] for place in order[begin : begin + size]], PAD),
            padded([[BEGIN, *targets[place], END] for place in order[begin : begin + size]], PAD),
        )
        for begin in range(0, len(order), size)
    ]


@torch.no_grad()
def loss_on(model: Translator, batches: Sequence[Batch]) -> float:
    """Nats a token of pairs that were not trained on, without smoothing."""
    model.eval()
    total, tokens = 0.0, 0
    for source, target in batches:
        scores, following = model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten()
        total += cross_entropy(scores, following, ignore_index=PAD, reduction="sum").item()
        tokens += int((following != PAD).sum())
    return total / tokens


def translations(model: Translator, sources: Sequence[list[int]], settings: Settings) -> list[list[int]]:
    """The translation of each sentence, in their order; at most half as long again, and ten tokens."""
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    device = model.embedding.weight.device
    found: dict[int, list[int]] = {}
    for begin in range(0, len(order), settings["batch"]):
        places = order[begin : begin + settings["batch"]]
        source = padded([sources[place] for place in places], PAD).to(device)
        most = min(source.shape[1] * 3 // 2 + 10, LONGEST - 1)
        answers = translated(model, source, settings["beam"], most)
        found |= zip(places, answers, strict=True)
    return [found[place] for place in range(len(sources))]


def bleu(answers: Sequence[str], references: Sequence[str]) -> float:
    from sacrebleu import corpus_bleu

    return float(corpus_bleu(list(answers), [list(references)]).score)


def require_sacrebleu() -> None:
    from importlib.util import find_spec

    if find_spec("sacrebleu") is None:
        raise InputError('translation needs sacrebleu, and it is not installed: pip install "normscope[lab]"')
