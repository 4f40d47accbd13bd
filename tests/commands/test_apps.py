"""The applications: what they answer, what they compute, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from receptive import reached
from torch import nn

import tgbench as tg
from tgbench.base.errors import InputError, WeightsError
from tgbench.base.regions import Box, Region
from tgbench.commands.apps import completions, edit, occlusion, stream
from tgbench.commands.apps.cnn import NETWORKS, Basic, ResNet, Vgg, network, seeded
from tgbench.commands.apps.completion import imported_gemma
from tgbench.commands.apps.occlusion import (
    full_multiply_adds,
    grouped,
    plan,
    run_clean,
    run_covered,
    session_of,
)
from tgbench.commands.apps.streaming import Stream, reach_of
from tgbench.commands.apps.tcn import Wavenet
from tgbench.commands.cli import main
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.propagate import Propagator
from tgbench.runs.rules import Rules
from tgbench.session.report import flops
from tgbench.session.session import GraphSession
from tgbench.sources.models.checkpoints import find_minilm

Image = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def image(size: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).normal(size=(1, 3, size, size)).astype(np.float32)


def small_vgg() -> nn.Module:
    return seeded(Vgg(((8, 8), (12,)), hidden=16, classes=10, pooled=2))


def small_resnet() -> nn.Module:
    return seeded(ResNet(Basic, (1, 1, 1, 1), width=8, classes=10))


# --- occlusion ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "at_once"), [(small_vgg, 1), (small_vgg, 3), (small_resnet, 4), (small_vgg, 100)]
)
def test_a_map_is_the_drops_of_full_forwards(make: Callable[[], nn.Module], at_once: int) -> None:
    module, x = make(), image(32)
    found = occlusion(module, x, patch=8, stride=8, at_once=at_once)
    assert found.drops.shape == (4, 4)
    assert found.at_once == min(at_once, 16)
    assert [len(run.places) for run in found.runs][-1] == (1 if at_once == 3 else found.at_once)
    assert sum(run.multiply_adds for run in found.runs) <= 16 * found.full_multiply_adds
    with torch.inference_mode():
        for row, column in np.ndindex(4, 4):
            covered = x.copy()
            covered[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
            drop = found.logit - module(torch.from_numpy(covered))[0, found.target].item()
            assert abs(drop - found.drops[row, column]) < 1e-5 * max(1, abs(found.logit))


def test_a_session_covers_as_many_places_as_it_has_rows() -> None:
    x = image(32)
    alone = occlusion(small_resnet(), x, patch=8, stride=8, at_once=1)
    session = session_of(small_resnet(), x, 5)
    found = occlusion(session, x, patch=8, stride=8)
    assert [len(run.places) for run in found.runs] == [5, 5, 5, 1]
    assert len(session.report().bucket.demand[0][1].boxes) == 1
    assert session.report().bucket.demand[0][1].elements == 10  # of one row
    assert found.full_multiply_adds == alone.full_multiply_adds
    assert np.abs(found.drops - alone.drops).max() < 1e-5 * max(1, abs(alone.logit))
    with pytest.raises(InputError, match="takes 5 images"):
        occlusion(session, x, patch=8, stride=8, at_once=4)


def test_a_session_is_made_ready_for_its_first_sweep_as_a_module_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the command, which opens one, computes no more than what patches reach."""
    made, really, x = list[int](), GraphSession.prepare, image(64)

    def prepare(session: GraphSession, *given: Any) -> int:
        made.append(really(session, *given))
        return made[-1]

    monkeypatch.setattr(GraphSession, "prepare", prepare)
    session = session_of(small_vgg(), x, 4, "measured")
    for _ in range(2):
        occlusion(session, x, patch=8, stride=8)
        assert len(made) == 1
    assert made[0] >= 1


def test_what_a_place_took_is_its_share_of_a_run() -> None:
    found = occlusion(small_vgg(), image(32), patch=8, stride=8, at_once=3)
    assert found.shares("multiply_adds").sum() == pytest.approx(found.multiply_adds)
    assert found.shares("time_ns").sum() == pytest.approx(found.time_ns)
    assert found.shares("time_ns").min() > 0


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12))
def test_every_place_is_in_one_group(rows: int, columns: int, at_once: int) -> None:
    groups = grouped([8 * i for i in range(rows)], [8 * j for j in range(columns)], 8, at_once)
    assert all(len(group) == at_once for group in groups[:-1])
    places = sorted(place for group in groups for place in group)
    assert places == [
        (8 * i, 8 * i + 8, 8 * j, 8 * j + 8) for i in range(rows) for j in range(columns)
    ]


class Mixed(nn.Module):
    """Rows of a batch that meet: all lose their mean."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)).flatten(1)


class Single(nn.Module):
    """One image alone: whatever comes is one row."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3 * 16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(x.view(1, -1))
        return found


@pytest.mark.parametrize("module", [Mixed(), Single(), nn.Flatten(0)])
def test_rows_that_do_not_stay_apart_are_refused(module: nn.Module) -> None:
    with pytest.raises(InputError, match="at_once=1"):
        occlusion(module.eval(), image(16), patch=8, stride=8)


def test_a_model_of_one_image_is_swept_one_place_at_a_time() -> None:
    assert occlusion(Single().eval(), image(16), patch=8, stride=8, at_once=1).at_once == 1
    with pytest.raises(InputError, match="1 or more"):
        occlusion(small_vgg(), image(16), patch=8, at_once=0)


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_second_image_needs_no_new_programs(at_once: int) -> None:
    session = session_of(small_vgg(), image(32), at_once)
    assert occlusion(session, image(32), patch=8, stride=8).programs_made
    again = occlusion(session, image(32, seed=1), patch=8, stride=8)
    assert not again.programs_made
    assert session.counters.planned == 1


def test_a_place_computes_exactly_what_its_patch_reaches() -> None:
    x = image(224)
    session = session_of(seeded(NETWORKS["resnet18"]()), x)
    starts = [0, 96, 208]
    plan(session, grouped(starts, starts, 16, 1))
    run_clean(session, x)
    assert full_multiply_adds(session, x) == reached("resnet18", 0, 0, 16).full
    for top, left in [(0, 0), (96, 208)]:
        made = run_covered(session, x, [(top, top + 16, left, left + 16)], 0, 0.0)
        assert made.multiply_adds == reached("resnet18", top, left, 16).reached


def test_joined_boxes_add_little_to_what_the_patches_reach() -> None:
    """Where one larger call is modelled faster than one a row, all rows compute their hull."""
    x = image(224)
    session = session_of(seeded(NETWORKS["resnet18"]()), x, 4)
    (places,) = grouped([96, 112], [96, 112], 16, 4)
    plan(session, [places])
    run_clean(session, x)
    assert full_multiply_adds(session, x) == reached("resnet18", 0, 0, 16).full
    made = run_covered(session, x, places, 0, 0.0).multiply_adds
    exact = sum(reached("resnet18", top, left, 16).reached for top, _, left, _ in places)
    assert exact <= made < 1.1 * exact


GROUPS = [[(0, 0)], [(96, 96)], [(96, 208)], [(112, 192)],
          [(0, 0), (96, 96), (96, 208), (112, 192)], [(96, 96), (96, 112), (112, 96)]]  # fmt: skip


@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_a_run_is_decided_exactly_as_its_patches_reach(name: str) -> None:
    """Of the large networks, decisions alone: their weights are never made.

    Everything is retained, so nothing may be computed again, and no boxes are joined.
    """
    with torch.device("meta"):
        module = NETWORKS[name]()
    imported = tg.from_torch(module.to_empty(device="cpu").eval(), (torch.zeros(4, 3, 224, 224),))
    scheduled, rules = ScheduledGraph.of(imported.graph), Rules()
    propagator = Propagator(scheduled.graph, scheduled.retaining(scheduled.stored), rules)
    (node,), (out,) = scheduled.graph.inputs.values(), scheduled.graph.outputs.values()
    full = Region.full(out.shape)
    clean = propagator.step({}, {node: Region.full(node.shape)}, {out: full})
    assert flops([clean], (), products=True) // 2 == 4 * reached(name, 0, 0, 16).full
    for places in GROUPS:
        patches = [Box(((row, row + 1), (0, 3), (top, top + 16), (left, left + 16)))
                   for row, (top, left) in enumerate(places)]  # fmt: skip
        rows = full.intersect(Region((Box(((0, len(places)), (0, 1000))),)))
        step = propagator.step(clean.valid, {node: Region.of(*patches)}, {out: rows})
        count = flops([step], (), products=True) // 2
        assert count == sum(reached(name, top, left, 16).reached for top, left in places)


def test_the_sweep_saves_what_the_arithmetic_says() -> None:
    """Total of the grid, and the mean of the places' ratios: the two ways to say it."""
    grid = [(16 * i, 16 * j) for i in range(14) for j in range(14)]
    for name, total, mean in [("vgg16", 9.30, 9.84), ("resnet18", 2.91, 2.98),
                              ("resnet50", 2.74, 2.83)]:  # fmt: skip
        counts = [reached(name, top, left, 16) for top, left in grid]
        assert sum(c.full for c in counts) / sum(c.reached for c in counts) == pytest.approx(
            total, abs=0.005
        )
        assert np.mean([c.full / c.reached for c in counts]) == pytest.approx(mean, abs=0.005)


def test_an_occlusion_map_shows_itself() -> None:
    found = occlusion(small_vgg(), image(16), patch=8, stride=8)
    shown = found._repr_mimebundle_()
    assert shown["image/svg+xml"].count("<title>") == 4
    assert "multiply–adds" in shown["text/plain"]
    assert json.dumps(found.to_dict())


def test_a_model_without_multiply_adds_saves_none() -> None:
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    found = occlusion(module, image(8), patch=4, stride=4)
    assert found.saving == 1
    assert "0 multiply–adds, no fewer than full forwards" in str(found)
    assert json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (np.zeros((3, 16)), {}, "float32"),
        (image(16), {"patch": 17}, "patch=17 with stride=16 does not fit 16 pixels"),
        (image(16), {"patch": 8, "stride": 0}, "stride"),
        (image(16), {"patch": 8, "target": 10}, "target=10 is none of the 10 classes"),
        (image(16), {"patch": 8, "fill": np.nan}, "fill=nan is no finite number"),
        (image(16), {"patch": 8, "fill": 1e39}, r"fill=1e\+39 is no finite number"),
    ],
)
def test_what_no_map_can_be_made_of(given: object, options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        occlusion(small_vgg(), given, **options)  # type: ignore[arg-type]


def test_a_model_of_another_form_is_refused() -> None:
    with pytest.raises(InputError, match=r"\[images, classes\]"):
        occlusion(nn.Conv2d(3, 3, 3).eval(), image(16), patch=8)


def test_weights_are_read_by_torchvisions_names(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    made = NETWORKS["resnet18"]().state_dict()
    save_file(made, tmp_path / "model.safetensors")
    loaded = network("resnet18", tmp_path / "model.safetensors").state_dict()
    assert all(torch.equal(loaded[name], made[name]) for name in made)
    del made["fc.bias"]
    save_file(made, tmp_path / "less.safetensors")
    with pytest.raises(WeightsError, match=r"fc\.bias"):
        network("resnet18", tmp_path / "less.safetensors")
    with pytest.raises(InputError, match="vgg16"):
        network("vgg11")


# --- runs that keep nothing -----------------------------------------------------------------------


def test_a_run_that_is_not_kept_changes_nothing() -> None:
    module, x = small_resnet(), image(32)
    imported = tg.from_torch(module, (torch.from_numpy(x),))
    session, fresh = (tg.GraphSession(imported, exact="bitwise") for _ in range(2))
    name = next(iter(session.graph.inputs))
    first = session.run({name: x})["output"]
    random = np.random.default_rng(5)
    for _ in range(5):
        other = x.copy()
        top, left = (int(n) for n in random.integers(0, 24, 2))
        other[:, :, top : top + 8, left : left + 8] = random.normal(size=8)
        found = session.run({name: other}, keep=False)["output"]
        fresh.forget()
        assert (found == fresh.run({name: other})["output"]).all()
        again = session.run({name: x})["output"]
        assert (again == first).all()
        assert session.report().recomputed < 1


def test_states_do_not_move_in_a_run_that_is_not_kept() -> None:
    g = tg.GraphBuilder()
    x, total = g.input("x", (2,)), g.state("total", (2,))
    g.update(total, total + x)
    g.output("y", total + x)
    session = tg.GraphSession(g.build())
    one = np.ones(2, np.float32)
    session.run({"x": one})
    assert session.run({"x": 5 * one}, keep=False)["y"].tolist() == [6, 6]
    assert session.state_value("total").tolist() == [1, 1]
    assert session.run({"x": one})["y"].tolist() == [2, 2]


# --- streaming ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "window"), [(1, 24), (4, 40), (3, None)])
def test_a_stream_is_the_network_over_the_whole_signal(block: int, window: int | None) -> None:
    module = Wavenet(channels=4, layers=4)
    signal = np.random.default_rng(0).normal(size=(1, 60)).astype(np.float32)
    found = stream(module, signal, block=block, window=window)
    assert found.reach == module.reach
    assert window is None or any(pushed.refilled for pushed in found.pushed)
    with torch.inference_mode():
        whole = module(torch.from_numpy(signal[None]))[0].numpy()
    assert np.abs(found.output - whole).max() < 1e-5


def test_a_block_costs_the_same_in_a_window_of_any_length() -> None:
    signal = np.random.default_rng(0).normal(size=(1, 60)).astype(np.float32)
    counts = {
        tuple(p.multiply_adds for p in stream(Wavenet(4, 4), signal, window=window).steady)
        for window in (64, 256, 1024)
    }
    assert len(counts) == 1
    assert len(set(counts.pop())) == 1


def test_the_steady_state_makes_no_programs() -> None:
    made = Stream.of(Wavenet(4, 3), 1, window=128)
    for _ in range(60):
        made.push(np.ones((1, 1), np.float32))
    assert not any(pushed.specialised for pushed in made.pushed[20:])


def test_what_cannot_be_streamed() -> None:
    with pytest.raises(InputError, match="not causal"):
        reach_of(nn.Conv1d(1, 1, 3, padding=1).eval(), 1)
    with pytest.raises(InputError, match="window=17 or more"):
        Stream.of(Wavenet(4, 4), 1, window=16)
    with pytest.raises(InputError, match="multiple of"):
        stream(Wavenet(4, 2), np.zeros((1, 7), np.float32), block=2)


# --- documents and prompts ------------------------------------------------------------------------

DOCUMENT = "A heron stood in the river. The loan was approved. He took the car apart."


@pytest.fixture
def has_minilm() -> None:
    try:
        find_minilm()
    except WeightsError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("has_minilm")
def test_an_edit_computes_its_sentence_alone() -> None:
    found = edit(DOCUMENT, [("loan", "mortgage"), ("car", "boat")], tokens=16)
    assert [state.rows for state in found.states[1:]] == [(1,), (2,)]
    assert all(abs(state.recomputed - 1 / 3) < 0.01 for state in found.states[1:])
    whole = edit(DOCUMENT.replace("loan", "mortgage").replace("car", "boat"), [], tokens=16)
    assert np.abs(found.states[-1].embedding - whole.states[0].embedding).max() < 1e-5


@pytest.mark.usefixtures("has_minilm")
def test_attention_is_named_where_it_spreads_an_edit() -> None:
    found = edit(DOCUMENT, [("car", "boat")], tokens=32, split=False)
    assert "layer_0.attention" in found.states[1].spread
    assert "nothing is saved behind layer_0.attention" in str(found)
    with pytest.raises(InputError, match="does not hold"):
        edit(DOCUMENT, [("whale", "shark")], tokens=16)


@pytest.mark.usefixtures("has_minilm")
def test_an_imported_encoder_computes_the_same() -> None:
    pytest.importorskip("transformers")
    ours, theirs = (
        edit(DOCUMENT, [("car", "boat")], tokens=16, imported=imported)
        for imported in (False, True)
    )
    for mine, other in zip(ours.states, theirs.states, strict=True):
        assert np.abs(mine.embedding - other.embedding).max() < 1e-5
        assert mine.rows == other.rows


def test_an_imported_gemma_reuses_the_prefix_of_an_edited_prompt() -> None:
    pytest.importorskip("transformers")
    session = tg.GraphSession(imported_gemma(24))
    prompt = list(range(3, 19))
    late = [*prompt[:-2], 40, prompt[-1]]
    first, second, fresh = completions(session, [prompt, late, prompt], 4)
    assert (first.common, second.common) == (0, 14)
    assert second.recomputed < 0.3 < first.recomputed
    assert fresh.ids == first.ids


# --- where nothing is saved -----------------------------------------------------------------------


def test_the_report_names_the_group_norm_that_spreads_a_change() -> None:
    from zoo import UNet

    module, x = UNet().eval(), image(16)
    session = tg.GraphSession(tg.from_torch(module, (torch.from_numpy(x),)))
    session.run({"x": x})
    assert session.report().spread is None  # all of the input changed
    x[:, :, 4:8, 4:8] = 0
    session.run({"x": x})
    spread = session.report().spread
    assert spread is not None
    assert spread.op == "group_norm"
    assert all(0 < share < 1 for share in spread.inputs.values())
    assert f"spreads to everything at {spread.node} (group_norm)" in str(session.report())


# --- commands -------------------------------------------------------------------------------------


def test_the_stream_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = "stream --layers 3 --channels 4 --samples 40 --plain --json"
    assert main(words.split()) == 0
    assert json.loads(capsys.readouterr().out)["largest_difference"] < 1e-4
    assert main(["stream", "--signal", "nowhere.npy"]) == 1


def test_the_complete_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--length", "12", "--steps", "2", "--json"]) == 0
    shares = [one["recomputed"] for one in json.loads(capsys.readouterr().out)]
    assert shares[1] < shares[2] < shares[0] == 1
    assert main(["complete", "--prompt", "text without a tokenizer"]) == 1


def test_the_occlusion_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, picture = tmp_path / "model.pt2", tmp_path / "image.npy"
    x = image(16)
    exported = torch.export.export(small_vgg(), (torch.from_numpy(x),))
    torch.export.save(exported.run_decompositions(), model)
    np.save(picture, x[0])
    for output in ("map.npz", "map.html"):
        words = ["occlusion", "--model", str(model), "--image", str(picture), "--patch", "8",
                 "--stride", "8", "--output", str(tmp_path / output), "--json"]  # fmt: skip
        assert main(words) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert np.allclose(np.load(tmp_path / "map.npz")["drops"], facts["drops"])
    page = (tmp_path / "map.html").read_text()
    assert "<svg" in page
    assert "color-scheme:light dark" in page, "and no dark words on white, or the reverse"
    assert "prefers-color-scheme:dark){body{background:" in page
    assert main(["occlusion", "--model", str(model), "--plain"]) == 1
    assert main(["occlusion", "--output", "map.gif"]) == 1
