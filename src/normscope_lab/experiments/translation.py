"""Translation from German to English with LN and with LN-G.

Ni et al. 2024: a transformer on IWSLT14, BLEU 35.01 ± 0.10 with LN and 35.23 ± 0.07 with LN-G.
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
from normscope_lab.engine.experiment import Cell, Experiment, Settings, in_groups
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve
from normscope_lab.loaders.data_files import place
from normscope_lab.loaders.parallel import parallel_files, read_parallel
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.byte_pairs import learned_pairs
from normscope_lab.training.training_loop import best_device, descend, padded, root_decay, train
from normscope_lab.training.translation_model import BEGIN, END, LONGEST, PAD, SPECIAL, Translator, translated

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from tokenizers import Tokenizer

VARIANTS = ("LN", "LN-G")
FOLDER = "multi30k_de_en"
Batch = tuple[Tensor, Tensor]  # source and target, (sentences, tokens) each


class TranslationGroups(Experiment):
    what = "a transformer from German to English with LN and LN-G, by BLEU"
    source = "Ni et al. 2024"
    data = f"a folder with train.de, train.en, test.de and test.en (.gz too), or a folder with such a folder {FOLDER}"
    seeds: ClassVar = {"quick": 3, "paper": 3}
    variants = VARIANTS
    paper: ClassVar = {
        "pairs": 160_000,
        "vocabulary": 10_000,
        "width": 512,
        "layers": 6,
        "heads": 4,
        "hidden": 1024,
        "groups": 128,
        "norm_first": False,
        "dropout": 0.3,
        "smoothing": 0.1,
        "batch": 160,
        "learning_rate": 5e-4,
        "warmup": 4000,
        "weight_decay": 1e-4,
        "epochs": 50,
        "beam": 5,
    }
    unpublished: ClassVar = tuple(paper)
    quick: ClassVar = {
        "pairs": 29_000,
        "vocabulary": 4000,
        "width": 96,
        "layers": 2,
        "hidden": 192,
        "groups": 24,
        "norm_first": True,
        "dropout": 0.0,
        "batch": 128,
        "learning_rate": 2e-3,
        "warmup": 500,
        "epochs": 8,
        "beam": 1,
    }

    def files(self, data: Path) -> list[Path]:
        return parallel_files(place(data, FOLDER), "de", "en")

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        require_sacrebleu()  # before hours of training, not after
        settings, device = cell.settings, best_device()
        splits = read_parallel(place(cell.data or Path(), FOLDER), "de", "en")
        german, english = (side[: settings["pairs"]] for side in splits["train"])
        tokenizer = learned_pairs([*german, *english], settings["vocabulary"], SPECIAL)
        sources, targets = (tokens_of(tokenizer, side) for side in (german, english))
        batches = [
            (source.to(device), target.to(device)) for source, target in in_batches(sources, targets, settings["batch"])
        ]
        model = Translator(tokenizer.get_vocab_size(), settings).to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings["learning_rate"],
            betas=(0.9, 0.98),
            weight_decay=settings["weight_decay"],
        )
        schedule = root_decay(optimizer, settings["warmup"])
        where: Row = {"variant": settings["variant"], "seed": cell.seed, "pairs": len(german)}

        def epoch(number: int) -> list[Row]:
            model.train()
            losses = []
            for place_ in torch.randperm(len(batches)).tolist():
                source, target = batches[place_]
                scores = model(source, target[:, :-1]).flatten(0, 1)
                loss = cross_entropy(
                    scores, target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=settings["smoothing"]
                )
                losses.append(descend(loss, optimizer, schedule))
            return [{**where, "epoch": number + 1, "loss": float(np.mean(losses))}]

        rows = train(state, (model, optimizer, schedule), settings["epochs"], epoch)
        model.eval()
        tested, references = splits["test"]
        answers = translations(model, tokens_of(tokenizer, tested), settings)
        score = bleu([tokenizer.decode(answer) for answer in answers], references)
        diverged = not np.isfinite(float(rows[-1]["loss"] or 0))
        return [*rows, {**where, "test_pairs": len(tested), "bleu": float("nan") if diverged else score}]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        scores = [column(rows, "bleu", variant=variant) for variant in VARIANTS]
        better = paired_difference(scores[1], scores[0])
        means = [
            f"{np.mean(each):.2f} ± {np.std(each, ddof=1):.2f}" if len(each) > 1 else f"{each[0]:.2f}"
            for each in scores
        ]
        pairs, tested = (max(int(row.get(name) or 0) for row in rows) for name in ("pairs", "test_pairs"))
        return [
            Finding(
                "LN-G translates better than LN",
                "BLEU 35.01 ± 0.10 with LN, 35.23 ± 0.07 with LN-G",
                f"{means[0]} with LN, {means[1]} with LN-G; better by {better}",
                better.above(),
                "95% interval of the paired difference over seeds above 0",
                self.differences(
                    settings,
                    rows,
                    f"trained on {pairs:,} pairs of {', '.join(settings['data'])}, tested on {tested:,} "
                    "(the paper: IWSLT14, 160,000 and 6,750), BLEU of sacrebleu, cased, after the last epoch "
                    "(the paper: fairseq's); one table of embeddings for both languages, and dropout inside attention "
                    "and feed-forward as well; sizes and training are those of fairseq's recipe for these data",
                    in_groups(settings),
                ),
            )
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.8), dpi=150, layout="constrained")
        losses, scores = figure.subplots(1, 2)
        for number, variant in enumerate(VARIANTS):
            draw_curve(losses, rows, "epoch", "loss", variant, variant=variant)
            values = column(rows, "bleu", variant=variant)
            scores.plot([number] * len(values), values, "o", alpha=0.7)
            scores.plot([number - 0.15, number + 0.15], [np.mean(values)] * 2, color="black")
        losses.set(xlabel="epochs", ylabel="training loss (nats a token)")
        losses.grid(alpha=0.3)
        losses.legend()
        scores.set(ylabel="BLEU, one point a seed", xticks=range(len(VARIANTS)), xticklabels=VARIANTS, xlim=(-0.5, 1.5))
        figure.suptitle(f"From German to English with LN and LN-G\n{BANDS}")
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
