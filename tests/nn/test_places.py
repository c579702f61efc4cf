"""Attention whose answers are positions, and pictures painted from them."""

from __future__ import annotations

import math

import torch

from ctrlformer.nn.places import Painter, PlaceReader

GRID = (5, 9)


def bright(row: int, column: int) -> torch.Tensor:
    cells = torch.zeros(1, *GRID, 4)
    cells[0, row, column] = 100.0
    return cells


def test_an_answer_is_the_position_of_what_was_asked_for() -> None:
    questions = torch.ones(3, 5)
    answers = PlaceReader(GRID)(questions, bright(row=4, column=2))[0]  # (3, x y presence)
    assert torch.allclose(answers[:, 0], torch.tensor(-0.5))  # columns go from -1 to 1
    assert torch.allclose(answers[:, 1], torch.tensor(1.0))
    assert (answers[:, 2] > 0.99).all()
    assert (PlaceReader(GRID)(questions, torch.zeros(1, *GRID, 4))[0, :, 2] < 0.6).all(), "nothing is there"


def test_answers_are_those_of_softmax_and_logsumexp() -> None:
    torch.manual_seed(0)
    reader, questions, cells = PlaceReader(GRID), torch.randn(6, 5), 3 * torch.randn(2, *GRID, 4)
    logits = reader.logits(questions, cells)
    position = logits.softmax(-1) @ reader.places[:, :2]
    presence = torch.sigmoid(logits.logsumexp(-1) - math.log(45) - reader.PRESENCE_OFFSET)
    answers = reader(questions, cells)
    torch.testing.assert_close(answers[..., :2], position)
    torch.testing.assert_close(answers[..., 2], presence)
    assert reader(questions, 1e4 * cells).isfinite().all()


def test_an_answer_moves_with_the_picture() -> None:
    torch.manual_seed(0)
    reader, questions = PlaceReader(GRID), torch.randn(3, 5)
    cells = torch.zeros(1, *GRID, 4)
    cells[0, 2, 2:4] = 20 * torch.randn(2, 4).abs()
    before, after = reader(questions, cells)[0], reader(questions, cells.roll(3, dims=2))[0]
    asked = before[:, 2] > 0.9  # questions that something in the map answers
    assert asked.any()
    assert torch.allclose(after[asked, 0] - before[asked, 0], torch.tensor(3 * 2 / 8), atol=0.02)
    assert torch.allclose(after[:, 1:], before[:, 1:], atol=0.02)


def test_a_spot_is_painted_at_its_place_in_its_colour() -> None:
    painter = Painter(9, 3)
    brushes = torch.tensor([[1.0, 0.5, 0.0, math.log(0.2)], [0.0, 0.0, 2.0, math.log(0.2)]])
    places = torch.tensor([[[-1.0, 0.5, 1.0], [1.0, 1.0, 0.25]]])
    picture = painter(places, brushes)[0]  # (3, H, W)
    assert picture[0].argmax() == 6 * 9, "row 6, first column"
    torch.testing.assert_close(picture[:, 6, 0], torch.tensor([1.0, 0.5, 0.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(picture[:, 8, 8], torch.tensor([0.0, 0.0, 0.5]), atol=0.01, rtol=0)
