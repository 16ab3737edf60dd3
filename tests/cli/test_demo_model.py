import pytest
import torch

from monitorch.cli.demo_model import CharacterTransformer


@pytest.fixture
def model():
    return CharacterTransformer(vocabulary=11, context=6, width=8, heads=2, depth=2)


@pytest.fixture
def ids():
    return torch.randint(11, (3, 6))


def test_scores_for_every_character_at_every_position(model, ids):
    assert model(ids).shape == (3, 6, 11)
    assert model(ids[:, :4]).shape == (3, 4, 11)


def test_a_prediction_knows_nothing_of_what_follows(model, ids):
    model.eval()
    changed = ids.clone()
    changed[:, 4:] = (ids[:, 4:] + 1) % 11
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_a_prediction_depends_on_all_that_went_before(model, ids):
    model.eval()
    vectors = model.token(ids).detach().requires_grad_()
    model.token.register_forward_hook(lambda *_: vectors)
    model(ids)[:, -1].sum().backward()
    assert (vectors.grad.abs().sum(-1) > 0).all()


def test_all_parameters_belong_to_leaves(model):
    in_leaves = [p for module in model.modules() if not list(module.children()) for p in module.parameters()]
    assert {id(p) for p in in_leaves} == {id(p) for p in model.parameters()}
