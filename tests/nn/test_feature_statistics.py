"""Features standardised by running averages."""

from __future__ import annotations

import torch

from ctrlformer.nn.feature_statistics import FeatureStatistics


def test_features_get_mean_0_and_std_1() -> None:
    torch.manual_seed(0)
    statistics = FeatureStatistics(3)
    statistics.add_task()
    scale, offset = torch.tensor([0.01, 1.0, 100.0]), torch.tensor([5.0, 0.0, -100.0])
    for _ in range(200):
        statistics.update(torch.randn(64, 3) * scale + offset, 0)
    out = statistics(torch.randn(4000, 3) * scale + offset, 0)
    torch.testing.assert_close(out.mean(0), torch.zeros(3), atol=0.1, rtol=0)
    torch.testing.assert_close(out.std(0), torch.ones(3), atol=0.1, rtol=0)


def test_tasks_have_statistics_of_their_own_or_copies() -> None:
    statistics = FeatureStatistics(1)
    statistics.add_task()
    statistics.update(torch.tensor([[1.0], [3.0]]), 0)
    statistics.add_task(copy_from=0)
    statistics.add_task()
    statistics.update(torch.tensor([[10.0]]), 1)
    assert statistics.mean.flatten().tolist() == [2.0, 6.0, 0.0]


def test_what_never_moved_cannot_explode() -> None:
    statistics = FeatureStatistics(1)
    statistics.add_task()
    statistics.update(torch.zeros(8, 1), 0)
    assert float(statistics(torch.ones(1, 1), 0)) == FeatureStatistics.LARGEST
