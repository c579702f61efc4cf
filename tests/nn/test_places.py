"""Attention whose answers are positions."""

from __future__ import annotations

import torch

from ctrlformer.nn.places import PlaceReader


def reader(questions: int = 3, grid: tuple[int, int] = (5, 9)) -> PlaceReader:
    torch.manual_seed(0)
    return PlaceReader(dim=8, channels=4, questions=questions, grid=grid)


def bright(row: int, column: int, grid: tuple[int, int] = (5, 9)) -> torch.Tensor:
    cells = torch.zeros(1, *grid, 4)
    cells[0, row, column] = 100.0
    return cells


def test_an_answer_is_the_position_of_what_was_asked_for() -> None:
    places = reader()
    with torch.no_grad():
        places.ask.weight.zero_()
        places.ask.bias.fill_(1.0)
    answers = places(torch.zeros(1, 8), bright(row=4, column=2)).view(3, 3)
    assert torch.allclose(answers[:, 0], torch.tensor(-0.5))  # columns go from -1 to 1
    assert torch.allclose(answers[:, 1], torch.tensor(1.0))
    assert (answers[:, 2] > 1).all()


def test_an_answer_moves_with_the_picture() -> None:
    places, token = reader(), torch.randn(1, 8)
    cells = torch.zeros(1, 5, 9, 4)
    cells[0, 2, 2:4] = 20 * torch.randn(2, 4).abs()
    before = places(token, cells).view(3, 3)
    after = places(token, cells.roll(3, dims=2)).view(3, 3)
    asked = before[:, 2] > 1  # questions that something in the map answers
    assert asked.any()
    assert torch.allclose(after[asked, 0] - before[asked, 0], torch.tensor(3 * 2 / 8), atol=0.02)
    assert torch.allclose(after[:, 1:], before[:, 1:], atol=0.02)


def test_tokens_ask_different_questions() -> None:
    places, cells = reader(), torch.randn(2, 5, 9, 4)
    assert not torch.allclose(places(torch.randn(2, 8), cells), places(torch.randn(2, 8), cells))
