"""What experiments are made of: data as it comes, layers, search, each against a slow and obvious way."""

import gzip
import itertools
import json
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.linalg import helmert
from torch import nn
from torch.nn.functional import cross_entropy

from lab_data import write_all
from normscope.nn import Norm
from normscope_lab.experiments.translation import in_batches, translations
from normscope_lab.loaders.cifar_batches import batch_records
from normscope_lab.loaders.data_files import fingerprints, place, text
from normscope_lab.loaders.images import read_images
from normscope_lab.loaders.parallel import read_parallel
from normscope_lab.loaders.plain_texts import whole_text
from normscope_lab.training.image_task import MARGIN, over_images, packed, shifted
from normscope_lab.training.key_inputs import in_plane, seen_by, unselectable
from normscope_lab.training.linear_map import least_loss_map
from normscope_lab.training.majority_task import VARIANTS, WITHOUT_SHORT, Batches, Majority, loss_of, sequences
from normscope_lab.training.token_loss import PART, token_loss
from normscope_lab.training.training_loop import cosine_decay, linear_decay, root_decay
from normscope_lab.training.transformer import Attention, Block, DecoderBlock, FeedForward
from normscope_lab.training.translation_model import BEGIN, END, PAD, Translator, translated

TRANSLATOR = {
    "width": 8,
    "heads": 2,
    "hidden": 8,
    "dropout": 0.0,
    "norm_first": True,
    "channels": 4,
    "variant": "LN-G",
    "layers": 1,
    "batch": 2,
}


def test_cifar_in_binary_is_what_the_archive_has(tmp_path):
    archive = read_images(place(write_all(tmp_path / "data"), "cifar10"))
    (tmp_path / "cifar-10-batches-bin").mkdir()
    splits = (("data_batch_1", archive.x_train, archive.y_train), ("test_batch", archive.x_test, archive.y_test))
    for name, x, y in splits:
        records = np.concatenate([y[:, None], x.reshape(len(x), -1)], axis=1)
        (tmp_path / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(records.tobytes())
    binary = read_images(tmp_path / "cifar-10-batches-bin")
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(binary, name), getattr(archive, name))
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match="records of 3073 bytes"):
        read_images(tmp_path / "cifar-10-batches-bin")


def test_cifar_in_sheets_is_what_the_archive_has(tmp_path):
    archive = read_images(place(write_all(tmp_path / "data"), "cifar10"))
    folder = tmp_path / "package"
    folder.mkdir()
    splits = (
        ("data_batch_1", "train", archive.x_train, archive.y_train),
        ("test_batch", "test", archive.x_test, archive.y_test),
    )
    for name, split, x, y in splits:
        Image.fromarray(np.moveaxis(x, 1, -1).reshape(len(x), 1024, 3)).save(folder / f"{name}.png")
        (folder / f"{split}_lables.json").write_text(json.dumps(y.tolist()), encoding="utf-8")
    sheets = read_images(folder)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(sheets, name), getattr(archive, name))
    (folder / "train_lables.json").write_text("[0.5]", encoding="utf-8")
    with pytest.raises(ValueError, match="whole numbers from 0 to 255"):
        read_images(folder)
    (folder / "data_batch_1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="must be a PNG image"):
        read_images(folder)
    (folder / "train_lables.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no train_lables\.json"):
        read_images(folder)


def test_intervals_over_seeds_and_images_hold_the_truth_as_often_as_they_say():
    """Seeds and images that are drawn anew: an interval over the seeds alone would hold it far less often."""
    draw, held = np.random.default_rng(0), []
    hard, better = draw.normal(0, 1, 200_000), 0.3 + draw.normal(0, 0.2, 200_000)
    truth = 100 * np.mean(1 / (1 + np.exp(-hard - better)) - 1 / (1 + np.exp(hard)))
    for _ in range(300):
        hard = draw.normal(0, 1, 200)  # of the images, for one side more than for the other
        better = 0.3 + draw.normal(0, 0.2, (5, 1))
        right, wrong = (draw.random((5, 200)) < 1 / (1 + np.exp(-each)) for each in (hard + better, -hard))
        both = over_images([packed(row) for row in right], [packed(row) for row in wrong], 200)
        held.append(both.low <= truth <= both.high)
    assert 0.92 < np.mean(held) <= 1


def test_an_interval_over_images_is_that_of_two_ways():
    one, other = np.random.default_rng(0).random((2, 3, 40)) < [[[0.9]], [[0.5]]]
    apart = 100.0 * one - 100.0 * other
    both = over_images([packed(row) for row in one], [packed(row) for row in other], 40)
    frame = {"seeds": apart.mean(1) - apart.mean(), "images": apart.mean(0) - apart.mean()}
    squares = {"seeds": 40 * (frame["seeds"] ** 2).sum() / 2, "images": 3 * (frame["images"] ** 2).sum() / 39}
    left = sum(
        (apart[i, j] - apart[i].mean() - apart[:, j].mean() + apart.mean()) ** 2 for i in range(3) for j in range(40)
    )
    variance = (squares["seeds"] + max(squares["images"] - left / 78, 0)) / 120
    assert both.high - both.low == pytest.approx(2 * 4.302652729911275 * variance**0.5)
    alike = over_images([packed(row) for row in one], [packed(row) for row in one], 40)
    assert (alike.low, alike.high) == (0, 0)
    assert not np.isfinite(over_images([packed(one[0])], [packed(other[0])], 40).high)


@pytest.mark.parametrize("penalty", [0.0, 0.01])
def test_no_linear_map_has_a_lower_loss(penalty):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(200, 5)), draw.integers(0, 3, 200)
    found = least_loss_map(x, y, 3, penalty)
    assert found.gradient <= 1e-6

    def loss(weight, bias):
        fit = nn.functional.cross_entropy(torch.from_numpy(x @ weight + bias), torch.from_numpy(y)).item()
        return fit + penalty / 2 * (weight**2).sum()

    assert loss(found.weight, found.bias) == pytest.approx(found.loss)
    for _ in range(100):
        step = 10 ** draw.uniform(-4, 0)
        assert (
            loss(found.weight + step * draw.normal(size=(5, 3)), found.bias + step * draw.normal(size=3)) > found.loss
        )


def test_mnist_in_its_own_format_is_what_the_archive_has(tmp_path):
    archive = read_images(place(write_all(tmp_path / "data"), "mnist"))
    folder = tmp_path / "idx"
    folder.mkdir()
    for name, x, y in (("train", archive.x_train, archive.y_train), ("t10k", archive.x_test, archive.y_test)):
        images = struct.pack(">4B3I", 0, 0, 8, 3, len(x), 28, 28) + x.tobytes()
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, len(y)) + y.tobytes())
    found = read_images(folder)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(found, name), getattr(archive, name))


def python_two_pickle(data, labels, by_columns):
    """A batch as CIFAR-10's Python version has it: a dictionary pickled by Python 2, protocol 2."""

    def short(text):
        return b"U" + bytes([len(text)]) + text

    raw = data.tobytes(order="F" if by_columns else "C")
    shape = b"(" + b"".join(b"J" + struct.pack("<i", extent) for extent in data.shape) + b"t"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    least = b"J" + struct.pack("<i", -1)
    kind = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + short(b"|") + b"NNN" + least + least + b"K\x00tb"
    order = b"\x88" if by_columns else b"\x89"
    array = empty + b"(K\x01" + shape + kind + order + b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + b"".join(short(f"{number}.png".encode()) for number in range(len(labels))) + b"e"
    return (
        b"\x80\x02}(" + short(b"data") + array + short(b"labels") + numbers
        + short(b"batch_label") + short(b"training batch 1 of 5") + short(b"filenames") + names + b"u."
    )  # fmt: skip


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_cifar_batch_is_read_as_unpickling_reads_it(tmp_path, by_columns):
    draw = np.random.default_rng(0)
    data, labels = draw.integers(0, 256, (2500, 3072), dtype=np.uint8), draw.integers(0, 10, 2500).tolist()
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        (tmp_path / name).write_bytes(python_two_pickle(data, labels, by_columns))
    unpickled = pickle.loads((tmp_path / "test_batch").read_bytes(), encoding="latin-1")
    found = read_images(tmp_path)
    np.testing.assert_array_equal(found.x_test.reshape(2500, 3072), unpickled["data"])
    np.testing.assert_array_equal(found.y_test, unpickled["labels"])
    np.testing.assert_array_equal(found.x_train, np.concatenate([found.x_test] * 2))
    (tmp_path / "test_batch").write_bytes(python_two_pickle(data, labels[1:], by_columns))
    with pytest.raises(ValueError, match=r"test_batch must be .* got 7680000 bytes and 2499 labels"):
        read_images(tmp_path)
    (tmp_path / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match="and test_batch"):
        read_images(tmp_path)


def test_pickles_are_read_and_never_executed(tmp_path):
    order = f"touch '{tmp_path}/executed'".encode()
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02cos\nsystem\nU" + bytes([len(order)]) + order + b"\x85R.")
    (tmp_path / "test_batch").write_bytes(b"\x80\x02no pickle")
    with pytest.raises(ValueError, match=r"data_batch_1 must be a batch .* got 0 bytes and 0 labels"):
        read_images(tmp_path)
    with pytest.raises(ValueError, match=r"test_batch must be a batch"):
        batch_records(tmp_path / "test_batch")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data_batch_1", "test_batch"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"must have an \.npz"):
        read_images(tmp_path / "empty")


def test_parallel_text_must_be_parallel(tmp_path):
    for name, lines in (
        ("train.de", "ein\nzwei\n\n"),
        ("train.en", "one\ntwo\nthree\n"),
        ("valid.de", "c"),
        ("valid.en", "d"),
        ("test.de", "a"),
        ("test.en", "b"),
    ):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    found = read_parallel(tmp_path, "de", "en")
    assert found == {"train": (["ein", "zwei"], ["one", "two"]), "val": (["c"], ["d"]), "test": (["a"], ["b"])}
    (tmp_path / "train.de").write_text("ein\u2028mann\nzwei\r\ndrei", encoding="utf-8")
    assert read_parallel(tmp_path, "de", "en")["train"][0] == ["ein\u2028mann", "zwei", "drei"]
    (tmp_path / "train.en").write_text("one\n", encoding="utf-8")
    with pytest.raises(ValueError, match="as many lines"):
        read_parallel(tmp_path, "de", "en")
    with pytest.raises(FileNotFoundError, match=r"train\.fr"):
        read_parallel(tmp_path, "fr", "en")


def test_texts_are_files_or_folders_of_them(tmp_path):
    (tmp_path / "b.txt").write_text("second", encoding="utf-8")
    (tmp_path / "a.txt").write_text("first", encoding="utf-8")
    assert whole_text(tmp_path) == "first\nsecond"
    assert whole_text(tmp_path / "a.txt") == "first"
    (tmp_path / "a.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="UTF-8"):
        whole_text(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        place(tmp_path / "nowhere", "cifar10")


def test_files_are_known_by_content_wherever_they_lie(tmp_path):
    for folder, content in (("one", "same"), ("other", "same"), ("third", "else")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text.txt").write_text(content, encoding="utf-8")
    one, other, third = (fingerprints([tmp_path / name / "text.txt"]) for name in ("one", "other", "third"))
    assert one == other != third


def test_sequences_have_the_lead_they_say():
    settings = {"length": 30, "classes": 6, "samples": 200, "lead": 6}
    counts, target = sequences(settings, seed=3)
    assert (counts.sum(1) == 30).all()
    assert (counts.argmax(1) == target).all()
    ordered = counts.sort(1).values
    assert (ordered[:, -1] - ordered[:, -2] >= 6).all()
    again, _ = sequences(settings, seed=3)
    other, _ = sequences(settings, seed=4)
    assert torch.equal(counts, again)
    assert not torch.equal(counts, other)


def test_sequences_are_drawn_again_where_there_are_few_and_refused_where_there_are_none():
    counts, _ = sequences({"length": 3, "classes": 2, "samples": 50, "lead": 1}, seed=0)
    assert {tuple(sorted(row)) for row in counts.int().tolist()} == {(1, 2)}
    with pytest.raises(ValueError, match="lead must leave a partition of 3 into at most 2 parts, got 3"):
        sequences({"length": 3, "classes": 2, "samples": 5, "lead": 3}, seed=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradient_on_counts_are_those_at_every_token(variant):
    torch.manual_seed(0)
    counts, target = sequences({"length": 30, "classes": 6, "samples": 40, "lead": 6}, seed=0)
    model = Majority(6, 4, variant).double()
    tokens = torch.stack([torch.repeat_interleave(torch.arange(6), row.long()) for row in counts])
    slow = nn.functional.cross_entropy(model.at_tokens(tokens).flatten(0, 1), target.repeat_interleave(30))
    fast = loss_of(model, counts.double(), target)
    torch.testing.assert_close(fast, slow)
    parameters = list(model.parameters())
    for one, other in zip(torch.autograd.grad(fast, parameters), torch.autograd.grad(slow, parameters), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("variant", VARIANTS)
def test_keys_have_the_length_and_the_projection_of_their_variant(variant):
    torch.manual_seed(0)
    keys = Majority(6, 8, variant).double().keys().detach()
    expected = 8**-0.5 if "1/√d" in variant else 8**0.5
    torch.testing.assert_close(keys.norm(dim=-1), torch.full((6,), expected, dtype=torch.float64))
    assert (keys.sum(-1).abs().max() < 1e-9) == variant.startswith("with ")


def test_the_published_norm_without_projection_is_x_over_its_length_and_root_d():
    model = Majority(6, 8, WITHOUT_SHORT).double()
    x = model.embedding.detach()
    torch.testing.assert_close(model.keys().detach(), x / x.norm(dim=-1, keepdim=True) / 8**0.5)


def test_batches_hold_every_sample_once_in_an_epoch_and_resume():
    torch.manual_seed(0)
    batches = Batches(10, 4)
    first = [batches.next() for _ in range(3)]
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert sorted(torch.cat(first).tolist()) == list(range(10))
    batches.next()
    resumed = Batches(10, 4)
    resumed.load_state_dict(batches.state_dict())
    assert torch.equal(resumed.next(), batches.next())


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_is_torchs_encoder_layer(norm_first):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=norm_first).double()
    ours = Block(Attention(8, 2), FeedForward(8, 12, nn.ReLU()), Norm(8), Norm(8), norm_first=norm_first).double()
    parts = ("query", "key", "value")
    weights, biases = theirs.self_attn.in_proj_weight.chunk(3), theirs.self_attn.in_proj_bias.chunk(3)
    with torch.no_grad():
        for name, weight, bias in zip(parts, weights, biases, strict=True):
            getattr(ours.attention, name).weight.copy_(weight)
            getattr(ours.attention, name).bias.copy_(bias)
    ours.attention.out.load_state_dict(theirs.self_attn.out_proj.state_dict())
    ours.feed_forward[0].load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward[3].load_state_dict(theirs.linear2.state_dict())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    there = torch.arange(5) < torch.tensor([[5], [3], [4]])
    expected = theirs(x, src_key_padding_mask=~there)
    torch.testing.assert_close(ours(x, allowed=there)[there], expected[there])


def test_a_decoder_sees_neither_what_comes_nor_what_is_not_there():
    torch.manual_seed(0)
    norms = (Norm(8), Norm(8), Norm(8))
    block = DecoderBlock(Attention(8, 2), Attention(8, 2), FeedForward(8, 8, nn.ReLU()), norms)
    x, memory = torch.randn(1, 6, 8), torch.randn(1, 4, 8)
    there = torch.tensor([[True, True, True, False]])
    before = block(x, memory, there)
    x[:, 4:], memory[:, 3] = 7.0, 9.0
    after = block(x, memory, there)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4:], before[:, 4:])


def test_shifted_images_are_cut_from_the_padded_ones():
    torch.manual_seed(0)
    images = torch.randn(12, 3, 8, 8)
    wide = nn.functional.pad(images, (MARGIN,) * 4)
    for image, moved in zip(wide, shifted(images), strict=True):
        cuts = [
            cut
            for top, left in itertools.product(range(2 * MARGIN + 1), repeat=2)
            for plain in [image[:, top : top + 8, left : left + 8]]
            for cut in (plain, plain.flip(-1))
        ]
        assert any(torch.equal(moved, cut) for cut in cuts)


@pytest.mark.parametrize("beam", [1, 200])
def test_beam_search_finds_what_trying_all_finds(beam):
    torch.manual_seed(1)
    model = Translator(6, TRANSLATOR).double().eval()
    source = torch.tensor([[3, 4, 5], [5, 5, PAD]])
    found = translated(model, source, beam, most=3)
    for number in range(2):
        given = source[number : number + 1, : 3 - number]
        expected = greedy(model, given) if beam == 1 else best_of_all(model, given)
        assert found[number] == [token for token in expected if token > END]


@pytest.mark.parametrize("norm_first", [True, False])
@torch.no_grad()
def test_tokens_decoded_one_by_one_are_those_decoded_together(norm_first):
    torch.manual_seed(2)
    model = Translator(9, {**TRANSLATOR, "layers": 2, "norm_first": norm_first}).double().eval()
    target = torch.tensor([[BEGIN, 3, 4, 5], [BEGIN, 6, 7, 8]])
    encoded, there = model.encode(torch.tensor([[3, 4, 5], [5, 5, PAD]]))
    memory, past, found = model.read(encoded), [None] * 2, []
    for number in range(4):
        last, past = model.decode_next(target[:, number : number + 1], number, past, memory, there)
        found.append(last)
    torch.testing.assert_close(torch.cat(found, dim=1), model.decode(target, encoded, there), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("count", [1, PART - 1, PART, 2 * PART + 3])
def test_the_loss_in_parts_is_that_of_all_scores_at_once(count, smoothing):
    torch.manual_seed(count)
    hidden, table = (3 * torch.randn(size, 5, dtype=torch.float64, requires_grad=True) for size in (count, 7))
    following = torch.randint(7, (count,))
    following[0] = 1  # one that counts; 0 does not
    expected = cross_entropy(hidden @ table.T, following, ignore_index=0, label_smoothing=smoothing)
    found = token_loss(hidden, table, following, filler=0, smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(2 * loss, (hidden, table)) for loss in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_the_loss_of_scores_that_are_not_finite_is_not_finite():
    hidden, table = torch.full((2, 3), torch.inf), torch.ones(4, 3)
    assert token_loss(hidden, table, torch.tensor([1, 2]), filler=0).isnan()


@torch.no_grad()
def greedy(model, source):
    tokens = [BEGIN]
    while len(tokens) <= 3 and tokens[-1] != END:
        scores = model(source, torch.tensor([tokens]))[0, -1]
        scores[PAD] = -torch.inf
        tokens.append(int(scores.argmax()))
    return tokens[1:]


@torch.no_grad()
def best_of_all(model, source):
    """The translation of up to three tokens with the largest mean log-probability, by trying all."""
    best, most = [], -torch.inf
    for length in (1, 2, 3):
        for tokens in itertools.product(range(1, 6), repeat=length):
            if END in tokens[:-1] or (length < 3 and tokens[-1] != END):
                continue
            chances = model(source, torch.tensor([[BEGIN, *tokens[:-1]]]))[0].log_softmax(-1)
            mean = sum(chances[place, token] for place, token in enumerate(tokens)) / (length + 1)
            if mean > most:
                best, most = list(tokens), mean
    return best


def test_translations_keep_their_order():
    torch.manual_seed(0)
    model = Translator(9, TRANSLATOR).eval()
    sources = [[3, 4, 5, 6], [7], [8, 3], [5, 4, 3]]
    together = translations(model, sources, {**TRANSLATOR, "beam": 1})
    assert len(together) == 4
    alone = translations(model, [sources[1]], {**TRANSLATOR, "beam": 1})
    assert together[1][: len(alone[0])] == alone[0][: len(together[1])]


def test_batches_hold_every_pair_once():
    sources, targets = [[3], [4, 4], [5, 5, 5]], [[6, 6], [7], [8]]
    batches = in_batches(sources, targets, 2)
    assert [source.tolist() for source, _ in batches] == [[[3, PAD], [4, 4]], [[5, 5, 5]]]
    assert [target.tolist() for _, target in batches] == [[[BEGIN, 6, 6, END], [BEGIN, 7, END, PAD]], [[BEGIN, 8, END]]]


def test_rates_rise_and_fall_as_they_say():
    def rates(make, steps):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = make(optimizer)
        found = []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    assert rates(lambda optimizer: linear_decay(optimizer, 4), 6) == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0])
    assert rates(lambda optimizer: cosine_decay(optimizer, 4), 5) == pytest.approx([1, 0.8535534, 0.5, 0.1464466, 0])
    assert rates(lambda optimizer: cosine_decay(optimizer, 100, warmup=3), 3) == pytest.approx([0.25, 0.5, 0.75])
    assert rates(lambda optimizer: root_decay(optimizer, 2), 8)[::7] == pytest.approx([0.5, 0.5])


def test_keys_inside_others_are_counted():
    square = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    with_middle = np.concatenate([square, [[0.1, 0.2]]])
    found = unselectable([square[None], with_middle[None]])
    assert found == {"keys": 9, "unselectable": 1, "degenerate": 0, "certificates_hold": 1}


def test_projected_keys_are_judged_in_their_plane():
    inside = np.random.default_rng(0).normal(size=(300, 4))
    keys = inside @ helmert(5)
    np.testing.assert_allclose(in_plane(keys), inside, atol=1e-12)
    rounded = keys.astype(np.float32).astype(float)
    expected = unselectable([inside])
    assert expected["unselectable"] > 100
    assert unselectable([in_plane(rounded)]) == expected
    assert unselectable([rounded])["degenerate"] > 0  # what judging them in all channels leaves open


def test_names_that_occur_twice_are_told_apart_by_their_folders(tmp_path):
    for folder, content in (("one", "a"), ("other", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.npz").write_text(content, encoding="utf-8")
    found = fingerprints([tmp_path / "one" / "data.npz", tmp_path / "other" / "data.npz"])
    assert list(found) == ["one/data.npz", "other/data.npz"]
    assert len(set(found.values())) == 2


def test_what_was_not_copied_whole_is_said(tmp_path):
    (tmp_path / "train.de.gz").write_bytes(gzip.compress(b"ein mann " * 100)[:-9])
    with pytest.raises(ValueError, match="is truncated"):
        text(tmp_path / "train.de.gz")


def test_modules_are_seen_and_left_as_they_were():
    model = nn.Sequential(Norm(4), nn.Linear(4, 4))
    x = torch.randn(2, 3, 4)
    ((given, output),) = seen_by([model[0]], lambda: model(x))
    np.testing.assert_array_equal(given, x.double().numpy())
    np.testing.assert_array_equal(output, model[0](x).detach().double().numpy())
    assert not model[0]._forward_hooks
