"""Which layers a model has, and what they are called."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations

from monitorch.engine.parameters import ParameterBank
from monitorch.errors import OptionError, UnsupportedModelError
from monitorch.inspector.module_tree import (
    LayersOf,
    aliases,
    averaging_processes,
    named_parameters,
    scripted,
    unwrap,
    walk,
)


def tree():
    block = nn.ModuleDict({"lin": nn.Linear(1, 1), "act": nn.ReLU()})
    encoder = nn.ModuleDict({"blk": block, "out": nn.Linear(1, 1)})
    return nn.ModuleDict({"enc": encoder, "head": nn.Linear(1, 1)})


def names(layers, is_leaf):
    return {layer.name for layer in layers if layer.is_leaf is is_leaf}


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize(
    ("depth", "leaves", "non_leaves"),
    [
        (-1, ["enc.blk.lin", "enc.blk.act", "enc.out", "head"], ["enc.blk", "enc", ""]),
        (0, [""], []),
        (1, ["enc", "head"], [""]),
        (2, ["enc.blk", "enc.out", "head"], ["enc", ""]),
        (3, ["enc.blk.lin", "enc.blk.act", "enc.out", "head"], ["enc.blk", "enc", ""]),
        (9, ["enc.blk.lin", "enc.blk.act", "enc.out", "head"], ["enc.blk", "enc", ""]),
    ],
)
def test_leaves_shallower_than_depth_stay_leaves(depth, leaves, non_leaves, separator):
    layers = walk(tree(), depth, separator)
    assert names(layers, is_leaf=True) == {name.replace(".", separator) for name in leaves}
    assert names(layers, is_leaf=False) == {name.replace(".", separator) for name in non_leaves}


def test_layers_come_in_model_order_with_their_modules():
    model = tree()
    layers = walk(model)
    assert [layer.name for layer in layers] == ["", "enc", "enc.blk", "enc.blk.lin", "enc.blk.act", "enc.out", "head"]
    assert all(layer.module is model.get_submodule(layer.name) for layer in layers)


def test_model_without_children_is_a_leaf_without_a_name():
    lin = nn.Linear(1, 1)
    assert walk(lin) == [("", lin, True)]


@pytest.mark.parametrize("depth", [-2, -10])
def test_impossible_depth_is_refused(depth):
    with pytest.raises(OptionError, match=f"depth={depth} must be -1 for the whole model"):
        walk(tree(), depth)


def test_shared_module_appears_once_and_its_other_names_are_aliases():
    shared = nn.Linear(1, 1)
    model = nn.ModuleDict({"a": nn.Sequential(shared, nn.ReLU()), "b": nn.Sequential(shared), "c": shared})
    assert [layer.name for layer in walk(model) if layer.module is shared] == ["a.0"]
    found = aliases(model)
    assert found["a.0"] == ["b.0", "c"]
    assert found["a.0.weight"] == ["b.0.weight", "c.weight"]


def test_tied_weights_are_aliases_with_the_separator_of_the_user():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    assert aliases(model, "/") == {"embed/weight": ["head/weight"]}


def test_model_without_sharing_has_no_aliases():
    assert aliases(tree()) == {}


def test_parametrised_layer_is_one_leaf():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2)), nn.ReLU())
    assert [(layer.name, layer.is_leaf) for layer in walk(model)] == [("", False), ("0", True), ("1", True)]


def test_compiled_model_is_unwrapped():
    model = tree()
    assert unwrap(torch.compile(model, backend="eager")) is model
    assert unwrap(model) is model


def of_module(name, module, base=nn.Module):
    """A class as some other library would define it."""
    return type(name, (base,), {"__module__": module})


@pytest.mark.parametrize(
    ("wrapper", "text"),
    [
        (of_module("FullyShardedDataParallel", "torch.distributed.fsdp"), r"FullyShardedDataParallel .*fully_shard"),
        (of_module("DeepSpeedEngine", "deepspeed.runtime.engine"), "DeepSpeedEngine cannot be observed"),
        (
            of_module("DistributedDataParallel", "megatron.core.distributed.distributed_data_parallel"),
            r"DistributedDataParallel cannot be observed: Megatron adds gradients up in main_grad",
        ),
        (of_module("FullyShardedDataParallel", "megatron.core.distributed.custom_fsdp"), "Megatron .*main_grad"),
        (of_module("_PipelineStageBase", "torch.distributed.pipelining", object), "the stage's own module"),
        (lambda: nn.DataParallel(nn.Linear(1, 1)), "DataParallel cannot be observed: use DistributedDataParallel"),
    ],
)
def test_wrappers_that_cannot_be_observed_are_refused_by_name(wrapper, text):
    with pytest.raises(UnsupportedModelError, match=text):
        unwrap(wrapper())


def test_refused_wrapper_is_found_inside_a_model_and_behind_a_subclass():
    fsdp = of_module("FullyShardedDataParallel", "torch.distributed.fsdp")
    mine = of_module("MyWrapper", "my.code", fsdp)
    with pytest.raises(UnsupportedModelError, match="FullyShardedDataParallel cannot be observed"):
        unwrap(nn.Sequential(nn.Linear(1, 1), mine()))


def test_class_of_the_same_name_from_elsewhere_is_fine():
    model = of_module("FullyShardedDataParallel", "my.code")()
    assert unwrap(model) is model


@pytest.mark.parametrize(
    ("mark", "who"), [("ds_id", "DeepSpeed"), ("_hp_mapping", "DeepSpeed"), ("main_grad", "Megatron")]
)
def test_a_model_whose_numbers_are_kept_elsewhere_is_refused(mark, who):
    model = tree()
    setattr(model["head"].weight, mark, None)
    with pytest.raises(UnsupportedModelError, match=rf"trained by {who} cannot be observed: .*fully_shard"):
        unwrap(model)


def test_a_bank_is_no_leaf_and_stands_beside_the_model_under_one_name():
    bank = ParameterBank({"scale": torch.ones(1), "codes.left": torch.ones(2), "codes.right": torch.ones(2)})
    assert walk(bank) == [("", bank, False), ("codes", bank.get_submodule("codes"), False)]
    assert LayersOf(nn.Linear(1, 1), -1, "/", bank).names == ["", "parameters", "parameters/codes"]
    model = tree()
    assert LayersOf(model, 1, ".", bank).names == ["", "enc", "head", "parameters", "parameters.codes"]
    assert [name for name, _ in bank.named_parameters()] == ["scale", "codes.left", "codes.right"]


class Wrapper(nn.Module):
    """Stands around a module under some name, as many libraries do."""

    def __init__(self, name, module):
        super().__init__()
        self.add_module(name, module)


class Tuned(Wrapper):
    """As PEFT is built: a model around a tuner around the model itself."""

    def __init__(self, module):
        tuner = of_module("LoraModel", "peft.tuners.lora.model", of_module("BaseTuner", "peft.tuners", Wrapper))
        super().__init__("base_model", tuner("model", module))
        self.prompt_encoder = nn.Linear(1, 1)

    def forward(self, x):
        return self.base_model.model.forward(x)  # without a call, so that hooks of the model itself are not called


Tuned.__module__, Tuned.__name__ = "peft.peft_model", "PeftModel"


def fabric(module):
    found = of_module("_FabricModule", "lightning.fabric.wrappers", Wrapper)("_forward_module", module)
    found._original_module = module
    return found


WRAPPING = {
    "torch.compile": lambda module: torch.compile(module, backend="eager"),
    "checkpoint_wrapper": checkpoint_wrapper,
    "Fabric": fabric,
    "two": lambda module: fabric(checkpoint_wrapper(module)),
}


@pytest.mark.parametrize("wrap", WRAPPING.values(), ids=WRAPPING)
def test_no_layer_is_named_after_a_wrapper(wrap):
    model = tree()
    expected = [(layer.name, layer.module) for layer in walk(model)]
    assert [(layer.name, layer.module) for layer in walk(unwrap(wrap(model)))] == expected
    model["enc"] = wrap(model["enc"])
    model["enc"]._modules["ignored"] = None
    model["head"] = wrap(model["head"])
    assert [(layer.name, layer.module) for layer in walk(model)] == expected


class TunedLayer(nn.Module):
    """As PEFT builds a layer: its parts are in dictionaries by the names of adapters."""

    def __init__(self, *adapters):
        super().__init__()
        self.base_layer = nn.Linear(1, 1)
        self.lora_A = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in adapters})
        self.lora_embedding_A = nn.ParameterDict()


TunedLayer.__module__, TunedLayer.__name__ = "peft.tuners.tuners_utils", "BaseTunerLayer"


@pytest.mark.parametrize(
    ("adapters", "parts"),
    [(["default"], ["lora_A"]), (["a", "b"], ["lora_A", "lora_A.a", "lora_A.b"]), ([], [])],
    ids=["one", "two", "none"],
)
def test_an_adapter_is_named_only_where_there_are_several(adapters, parts):
    model = nn.ModuleDict({"first": TunedLayer(*adapters)})
    assert [layer.name for layer in walk(model)] == ["", "first", *(f"first.{part}" for part in ["base_layer", *parts])]


def test_parameters_have_the_names_of_their_layers():
    inner = nn.ModuleDict({"first": TunedLayer("default"), "last": nn.Linear(1, 1, bias=False)})
    inner["tied"] = nn.Linear(1, 1, bias=False)
    inner["tied"].weight = inner["last"].weight
    found = dict(named_parameters(Tuned(inner)))
    expected = ["first.base_layer.weight", "first.base_layer.bias", "first.lora_A.weight", "last.weight"]
    assert list(found) == [*expected, "prompt_encoder.weight", "prompt_encoder.bias"]
    assert found["first.lora_A.weight"] is inner["first"].lora_A["default"].weight


def test_parameters_of_other_models_have_their_usual_names():
    model = parametrizations.weight_norm(nn.Linear(1, 1))
    wrapped = nn.Sequential(model, tree())
    assert list(dict(named_parameters(wrapped))) == list(dict(wrapped.named_parameters()))


@pytest.mark.parametrize("name", ["module", "_orig_mod", "base_model", "model", "_forward_module"])
def test_a_layer_may_have_a_name_that_wrappers_use(name):
    model = nn.ModuleDict({name: nn.ModuleDict({name: nn.Linear(1, 1)}), "other": nn.Linear(1, 1)})
    assert unwrap(model) is model
    assert [layer.name for layer in walk(model)] == ["", name, f"{name}.{name}", "other"]


def test_a_tuned_model_has_the_names_of_the_model_inside_and_is_known_by_its_wrapper():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    model.scale = nn.Parameter(torch.ones(1))
    tuned = Tuned(model)
    assert unwrap(tuned) is tuned
    found = [(layer.name, layer.module) for layer in walk(tuned)]
    layers = [("0", model[0]), ("1", model[1]), ("prompt_encoder", tuned.prompt_encoder)]
    assert found == [("", tuned), ("", model), *layers]
    assert LayersOf(tuned).names == ["", "0", "1", "prompt_encoder"]


def test_shared_parts_of_wrapped_models_have_names_without_wrappers_too():
    shared = nn.Linear(1, 1)
    model = Tuned(nn.ModuleDict({"a": shared, "b": checkpoint_wrapper(nn.Sequential(shared))}))
    assert aliases(model, "/") == {"a": ["b/0"], "a/weight": ["b/0/weight"], "a/bias": ["b/0/bias"]}


@pytest.mark.parametrize(("thing", "kind"), [(None, "NoneType"), (nn.Linear, "type"), ([nn.Linear(1, 1)], "list")])
def test_what_is_no_module_is_refused(thing, kind):
    with pytest.raises(OptionError, match=f"a model is a torch.nn.Module, not {kind}"):
        unwrap(thing)


@pytest.mark.parametrize(
    ("parallel", "processes"), [(DistributedDataParallel, 1), (fully_shard, 1), (nn.Sequential, 0)]
)
def test_over_how_many_processes_gradients_are_averaged(parallel, processes, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert averaging_processes(nn.Sequential(parallel(nn.Linear(2, 2)))) == processes
    finally:
        dist.destroy_process_group()


def test_only_what_has_changed_in_a_model_is_told():
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()), nn.Tanh())
    layers = LayersOf(model)
    assert layers.changes() == (set(), [])
    model[1][0] = nn.GELU()
    gone, new = layers.changes()
    assert (gone, [layer.name for layer in new]) == ({"1.0"}, ["1.0"])
    model[2].inner = nn.ReLU()  # a leaf that is none any more
    del model[0]
    gone, new = layers.changes()
    assert gone == {"0", "0.0", "1", "1.0", "2"} - {"1.0", "0.0"} | {"1.0"}
    assert [layer.name for layer in new] == ["0", "0.0", "1", "1.inner"]
    assert layers.changes() == (set(), [])
    assert layers.names == ["", "0", "0.0", "1", "1.inner"]


def test_a_layer_that_gets_a_layer_inside_has_changed_and_so_has_one_that_loses_its_last():
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    layers = LayersOf(model)
    model[1].inner = nn.ReLU()
    gone, new = layers.changes()
    assert (gone, [(layer.name, layer.is_leaf) for layer in new]) == ({"1"}, [("1", False), ("1.inner", True)])
    del model[1].inner
    gone, new = layers.changes()
    assert (gone, [(layer.name, layer.is_leaf) for layer in new]) == ({"1", "1.inner"}, [("1", True)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_parts_are_no_layers():
    model = nn.Sequential(nn.Linear(1, 1), torch.jit.script(nn.Sequential(nn.Linear(1, 1), nn.ReLU())))
    assert [layer.name for layer in walk(model)] == ["", "0"]
    assert scripted(model) == ["1"]
    with pytest.raises(UnsupportedModelError, match=r"watch the model before torch\.jit"):
        unwrap(torch.jit.script(nn.Linear(1, 1)))
