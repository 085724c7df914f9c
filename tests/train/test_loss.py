import pytest
import torch

from glmexp.train.loss import loss_sum, shifted, target_count


def test_each_position_predicts_the_next_token() -> None:
    assert shifted(torch.tensor([[1, 2, 3]])).tolist() == [[2, 3, -100]]


def test_the_first_label_is_never_seen() -> None:
    assert target_count(shifted(torch.tensor([[7, -100, -100], [-100, 8, 9]]))) == 2


def test_it_is_the_sum_over_the_targets() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 11)
    labels = torch.tensor([[-100, -100, 3, 4], [-100, 5, -100, -100]])
    by_hand = sum(
        -torch.log_softmax(logits[row, column - 1], -1)[labels[row, column]] for row, column in ((0, 2), (0, 3), (1, 1))
    )
    assert loss_sum(logits, shifted(labels)).item() == pytest.approx(float(by_hand), rel=1e-6)


def test_no_target_gives_zero_with_a_zero_gradient() -> None:
    logits = torch.randn(1, 3, 5, requires_grad=True)
    loss = loss_sum(logits, torch.full((1, 3), -100))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_low_precision_logits_are_summed_in_fp32() -> None:
    logits = torch.randn(64, 8, 100)
    labels = torch.randint(0, 100, (64, 8))
    rounded = logits.to(torch.bfloat16)
    found = loss_sum(rounded, labels)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(loss_sum(rounded.float(), labels).item(), rel=1e-6)
