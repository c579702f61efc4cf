"""Pixel statistics per task."""

import torch

from ctrlformer.nn.pixel_statistics import PixelStatistics


def test_statistics_are_the_mean_over_batches_and_kept_per_task() -> None:
    statistics = PixelStatistics((4, 4, 3))
    statistics.add_task()
    statistics.add_task()
    batches = [torch.randint(0, 256, (8, 4, 4, 3), dtype=torch.uint8) for _ in range(5)]
    for batch in batches:
        statistics.update(batch, task=1)
    torch.testing.assert_close(statistics.mean[1], torch.stack([b.float().mean(0) for b in batches]).mean(0))
    assert (statistics.mean[0] == 127.5).all(), "another task's frames must not move this task's mean"
    assert 0 < float(statistics.scale(1)) <= 1


def test_still_frames_are_not_blown_up() -> None:
    statistics = PixelStatistics((4, 4, 3))
    statistics.add_task()
    statistics.update(torch.full((8, 4, 4, 3), 7, dtype=torch.uint8), task=0)
    assert float(statistics.scale(0)) == 1.0


def test_adding_a_task_leaves_the_others_alone() -> None:
    statistics = PixelStatistics((4, 4, 3))
    statistics.add_task()
    statistics.update(torch.randint(0, 256, (8, 4, 4, 3), dtype=torch.uint8), task=0)
    before = statistics.mean[0].clone()
    statistics.add_task()
    assert torch.equal(statistics.mean[0], before)
