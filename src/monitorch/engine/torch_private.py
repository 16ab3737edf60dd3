"""All private names of torch that this package uses, each with the reason why no public one will do.

A release of torch may change these without notice, so each has a test that shows what it does. Names that modules and
tensors had for years, such as ``_parameters``, ``_forward_hooks`` and ``_version``, are used everywhere.

Importing this file loads neither the compiler nor the package for distributed tensors: both are slow to load.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from operator import attrgetter
from types import CodeType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn, overrides
from torch._subclasses import fake_tensor
from torch.autograd import Variable, forward_ad
from torch.autograd.function import BackwardCFunction
from torch.fx import _symbolic_trace
from torch.nn.modules import module
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch, _pytree

Function = TypeVar("Function", bound=Callable[..., Any])

# torch.compile: what functions and tensors are to it


def skip_frame(function: Function) -> Function:
    """Never let the compiler make a graph of this function alone; what it calls is skipped, too.

    It can still be traced into the graph of its caller. ``torch.compiler.disable`` would prevent that.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def end_graph(function: Function) -> Function:
    """Let the compiler end a graph before each call of this function; with :func:`skip_frame`, it is never compiled.

    ``torch.compiler.disable`` does both, but loads the compiler and puts a wrapper around every call.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def mark_constant(function: Function) -> Function:
    """Let the compiler call this function while it traces, and put the result into the graph as a constant.

    ``torch.compiler.assume_constant_result`` does the same, but loads the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def mark_static(tensor: Tensor) -> Tensor:
    """Tell the compiler that the memory of this graph input stays the same: CUDA graphs need not copy it.

    ``torch._dynamo.mark_static_address`` does the same, but loads the compiler.
    """
    tensor._dynamo_static_input_type = "unguarded"  # type: ignore[attr-defined]
    return tensor


# torch.compile: what was compiled

COMPILED_INSIDE = "_orig_mod"
"""The submodule in which the result of ``torch.compile(module)`` keeps the module; no method returns it."""

COMPILER_FILES = r"torch\._dynamo\."
"""The modules of the compiler, as a pattern for filters of warnings."""


def has_compiled_call(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called; torch has no public way to ask."""
    return module._compiled_call_impl is not None


def number_of_graphs() -> int:
    """How many graphs were compiled in this process, including those dropped by a reset; nothing public counts them."""
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if compiler is None else compiler.counters["stats"]["unique_graphs"]


def may_have_graphs(code: CodeType) -> bool:
    """Whether there are compiled graphs of this code; true if torch does not tell. Nothing public lists graphs."""
    graphs_of = getattr(torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list", None)
    return graphs_of is None or bool(graphs_of(code))


def without_compiler(function: Any) -> Any:
    """The function that ``torch.compile`` wrapped, or None; ``__wrapped__`` may be another decorator's."""
    return getattr(function, "_torchdynamo_orig_callable", None)


def path_in_graph() -> str:
    """While the compiler traces: the module whose call is being traced, as a path from where the graph begins.

    Nothing public tells: hooks of modules would, but cost every call of every module.
    """
    try:
        tracer: Any = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator.current_tx()
        modules = list(tracer.output.current_tx.nn_module_stack.values())
        return str(modules[-1][0]).partition(".")[2] if modules else ""
    except Exception:  # another release: the module where the graph begins is told from its frame
        return ""


BRANCHES = frozenset(("cond", "while_loop", "map", "map_impl", "scan", "associative_scan"))
"""Operators of torch that run a function of the user as a graph of its own, in which nothing may be written to."""


def allows_operators() -> bool:
    """While the compiler traces: whether operators that call back may be put here.

    Not under a functional transform such as ``vmap``, nor in a function that ``torch.cond`` or a similar operator runs.
    Nothing public tells of either.
    """
    try:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        tracer: Any = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator.current_tx()
        part = tracer.output.current_tracer
        while part is not None:
            if getattr(part.source_target, "_name", None) in BRANCHES:
                return False
            part = part.parent
    except Exception:  # another release
        return True
    return True


mark_constant(path_in_graph)
mark_constant(allows_operators)


# modes


def remove_mode(mode: TorchFunctionMode) -> None:
    """Remove a mode of this thread, even from below others, if it is on; the public API only removes the last one."""
    modes: Any = overrides
    if any(known is mode for known in modes._get_current_function_mode_stack()):
        above = []
        while (last := modes._pop_mode()) is not mode:
            above.append(last)
        for other in reversed(above):
            modes._push_mode(other)


without_functions = torch._C.DisableTorchFunction
"""Inside a ``with`` block no mode of ``torch.overrides`` sees what is called.

The public way, removing a mode and putting it back, takes ten times as long.
"""


def without_operator_modes() -> AbstractContextManager[Any]:
    """Inside a ``with`` block no mode of operators sees what runs: selective checkpointing saves it, in its order.

    They are taken off until the end of the block, so none may be put on or taken off inside.
    """
    return _python_dispatch._disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def without_modes() -> AbstractContextManager[Any]:
    """Both."""
    return _without_modes(without_functions()) if torch._C._len_torch_dispatch_stack() else without_functions()


def without_modes_of_others() -> AbstractContextManager[Any]:
    """The same for hooks of optimizers and gradients, and for ticks, where a mode of ours may be taken off.

    While one of ours is on nothing is taken off. Nor while a tracer runs: its modes tell that it does. Tensors of
    subclasses still do as they like, unless there are modes.
    """
    functions = without_functions() if torch._C._len_torch_function_stack() else nullcontext()
    if not torch._C._len_torch_dispatch_stack():
        return functions
    is_ours = any(getattr(mode, "is_ours", False) for mode in _python_dispatch._get_current_dispatch_mode_stack())
    return nullcontext() if is_ours or is_traced() else _without_modes(functions)


class _Hidden(threading.local):
    """The last of the modes of operators that are off for a while, in each thread."""

    mode: Any = None


_hidden = _Hidden()


@contextmanager
def _without_modes(functions: AbstractContextManager[Any]) -> Iterator[None]:
    before, _hidden.mode = _hidden.mode, last_operator_mode()
    try:
        with functions, without_operator_modes():
            yield
    finally:
        _hidden.mode = before


OperatorMode = _python_dispatch.TorchDispatchMode
"""Base of modes that see every operator that runs, also in backward; those of ``torch.overrides`` do not see that."""


def last_operator_mode() -> Any:
    """The last of the modes of operators that are on in this thread, also if they are off for our hooks; or None.

    There is no public way to ask.
    """
    return _python_dispatch._get_current_dispatch_mode() or _hidden.mode


def without_graphs() -> AbstractContextManager[Any]:
    """Run compiled functions as they were written inside a ``with`` block.

    ``torch.compiler.set_stance`` is public, but loads the compiler; before that, nothing is compiled.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


# tracers and transforms


def is_exported() -> bool:
    """Whether torch.export is tracing the caller.

    Before torch 2.13 the public ``torch.compiler.is_exporting`` is true inside every graph.
    """
    return torch.compiler._is_exporting_flag


_jit_state = torch._C._get_tracing_state
_transform = torch._C._functorch.peek_interpreter_stack
_number_of_modes = torch._C._len_torch_dispatch_stack
_mode = torch._C._get_dispatch_mode
_MODE_KEYS = torch._C._TorchDispatchModeKey
_TRACING_MODES = _MODE_KEYS.FAKE, _MODE_KEYS.PROXY, _MODE_KEYS.FUNCTIONAL
"""Modes in which tensors are stand-ins: without data, or with the data of another tensor."""


def is_traced() -> bool:
    """Whether a tracer or a functional transform runs the model: such a pass is not part of training.

    Its tensors are stand-ins: their numbers would belong to a derivative, to one sample, or to nothing. Public names
    tell only of torch.compile, torch.export and torch.jit.
    """
    # flags instead of functions: every hook asks this
    if torch.compiler._is_compiling_flag or _symbolic_trace._is_fx_tracing_flag or _jit_state() is not None:
        return True
    if _transform() is not None or forward_ad._current_level >= 0:
        return True
    # other modes, such as one that counts operations, leave tensors as they are
    return _number_of_modes() > 0 and any(_mode(key) is not None for key in _TRACING_MODES)


is_transformed: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor stands for others in ``vmap``, ``grad`` or another functional transform; its class does not tell."""


# backward passes

NO_TASK = -1
"""What :data:`graph_task` returns outside backward."""

graph_task: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass that runs in this thread; nothing public tells of a running backward pass."""

backward_node: Callable[[], Any] = torch._C._current_autograd_node
"""The node of the autograd graph that runs in this thread, or None; public hooks are told of one node only."""

will_execute: Callable[[Any], bool] = torch._C._will_engine_execute_node
"""Whether the running backward pass will run this node; that of a leaf adds a gradient to its ``.grad``.

It raises RuntimeError for a leaf whose gradient ``autograd.grad()`` returns. Public hooks are called only when a node
does run, which is too late.
"""


def inside_backward() -> bool:
    """Whether autograd is running a backward pass in this thread."""
    return graph_task() != NO_TASK


def after_backward(callback: Callable[[], None]) -> None:
    """Call this when the running backward pass ends, after callbacks that are queued already.

    Public hooks belong to one tensor or node, and none of these has to be the last one.
    """
    Variable._execution_engine.queue_callback(callback)


def hook_gradient(tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
    """Call a hook with the gradient of a tensor that is not a leaf, as ``register_hook`` does, for good.

    ``register_hook`` also creates a handle, which takes three times as long as everything else.
    """
    if type(tensor) is not Tensor:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        return
    hooks: Any = tensor._backward_hooks
    if hooks is None:
        hooks = tensor._backward_hooks = OrderedDict()
        tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]
    hooks[hook] = hook


def is_graph_function(context: BackwardCFunction) -> bool:
    """Whether this is the context of a compiled graph, which runs as an autograd function; no flag tells them apart."""
    kind: type = type(context)._forward_cls  # type: ignore[attr-defined]
    return kind.__module__.startswith("torch._functorch.")


# modules

has_global_hooks: Callable[[], Any] = module._has_any_global_hook
"""Whether there are hooks that all modules call; registering one is public, asking for them is not."""

MODULE_CALL = nn.Module._call_impl.__code__
"""The code that runs while a module is called; no public name tells which modules are running."""


# tensors

without_overrides: Any = torch._C.DisableTorchFunctionSubclass
"""A context in which tensor subclasses are plain tensors: uninitialised parameters refuse nearly all methods.

The guide to tensor subclasses uses this name: there is no public one.
"""

content_of: Callable[[Tensor], int] = attrgetter("_cdata")
"""The address of the C++ tensor in a Python tensor: ``swap_tensors`` exchanges these and keeps the objects."""

copy_all: Callable[[list[Tensor], list[Tensor]], None] = torch._foreach_copy_
"""Copy the tensors of the second list into those of the first, with few launches; ``Tensor.copy_`` takes one each."""

norm_all: Callable[..., tuple[Tensor, ...]] = torch._foreach_norm
"""The Euclidean norms of many tensors, with few launches; ``torch.linalg.vector_norm`` takes one each."""

root_all: Callable[..., tuple[Tensor, ...]] = torch._foreach_sqrt
"""The roots of many tensors with few launches; ``Tensor.sqrt`` needs one each. The same holds for the next three."""

multiply_all: Callable[..., None] = torch._foreach_mul_
"""Multiply many tensors in place, each by a number or a scalar tensor of its own."""

raise_all: Callable[..., None] = torch._foreach_clamp_min_
"""Raise the elements of many tensors in place, to a least value for each tensor."""

divide_all: Callable[..., tuple[Tensor, ...]] = torch._foreach_div
"""Divide many tensors, each by another one."""


FakeTensor = fake_tensor.FakeTensor
"""Tensors without data that have a real device, so that the public ``is_meta`` does not tell them apart."""


def put_back_hook(module: nn.Module, number: int, hook: Any, *, before: bool) -> None:
    """Register a hook of a module again under the number that it had; it gets keyword arguments, too.

    Calling ``register_forward_hook`` takes ten times as long, and would need a new handle.
    """
    if before:
        module._forward_pre_hooks[number] = hook
        module._forward_pre_hooks_with_kwargs[number] = True
    else:
        module._forward_hooks[number] = hook
        module._forward_hooks_with_kwargs[number] = True


def forget_empty_hooks(parameter: Tensor) -> None:
    """Make a parameter whose hooks on gradients were all removed one that never had any.

    Autograd would go on to look into the empty dictionary in every backward pass, which takes a microsecond. After
    ``swap_tensors`` it belongs to another C++ tensor, and what public methods put into it is never called.
    """
    for name in ("_post_accumulate_grad_hooks", "_backward_hooks"):
        others = getattr(parameter, name)
        if others is not None and not others:
            setattr(parameter, name, None)


tree_map = _pytree.tree_map
"""Call a function for each leaf of nested containers and return the same with the results; nothing public does that."""

tree_leaves = _pytree.tree_leaves
"""The leaves of nested containers as a list; nothing public does that."""


def is_container(kind: type) -> bool:
    """Whether :func:`tree_map` looks inside things of this class; nothing public tells."""
    return kind in _pytree.SUPPORTED_NODES


# kinds of modules; the public classes have no other common base, and lists of them would miss subclasses and new ones

Convolution = _ConvNd
"""Convolutions and transposed convolutions, lazy ones included."""

Normalization = _NormBase
"""Batch and instance normalisations, lazy ones included."""

BatchNorm = _BatchNorm
"""Batch normalisations of any number of dimensions, over processes, and lazy ones."""

Dropout = _DropoutNd
"""All kinds of dropout."""


# optimizers and loss scalers

STEP_PRE_HOOKS = "_optimizer_step_pre_hooks"
"""Where an optimizer keeps its step pre-hooks; public methods add and remove them, but do not tell their order."""


def step_pre_hooks(optimizer: Any) -> "OrderedDict[int, Any] | None":
    """The step pre-hooks of an optimizer, in the order of their calls; None if it has no attribute for them."""
    return getattr(optimizer, STEP_PRE_HOOKS, None)


_STEP = Optimizer.profile_hook_step(lambda *_: None).__code__
"""The wrapper around every ``step`` that calls its hooks."""


def running_steps(optimizer: Optimizer) -> int:
    """How many steps of an optimizer are running, one calling the other; a failed step calls no public hook."""
    frame, running = sys._getframe(), 0
    while frame is not None:
        if frame.f_code is _STEP and frame.f_locals["args"][0] is optimizer:
            running += 1
        frame = frame.f_back  # type: ignore[assignment]
    return running


def loss_scale_tensor(scaler: Any) -> Tensor | None:
    """The scale of a GradScaler as a tensor, None before its first use; ``get_scale()`` would wait for the GPU."""
    scale: Tensor | None = scaler._get_scale_async()
    return scale


# processes

CHECKPOINTED_INSIDE = "_checkpoint_wrapped_module"
"""The submodule in which ``checkpoint_wrapper`` keeps a module; no method returns it."""

PIPELINE_STAGE = "_PipelineStageBase"
"""The name of the class that all pipeline stages are derived from; the public ones are its subclasses."""


def default_store() -> Any:
    """The store that all processes of the default group share; public functions take a store, but do not return it."""
    from torch.distributed import distributed_c10d  # some builds of torch have none

    return distributed_c10d._get_default_store()


def connect(store: Any, rank: int, processes: int, limit: timedelta) -> Any:
    """Connect processes that share a store, on the CPU and beside all groups that training knows.

    ``dist.new_group`` is for all processes of a training: if only some call it, they wait for the others, and later
    groups of the user fail.
    """
    from torch.distributed import distributed_c10d

    return distributed_c10d.ProcessGroupGloo(store, rank, processes, limit)


def reduce_in_place(group: Any, tensor: Tensor, operation: Any, limit: timedelta) -> None:
    """Reduce a tensor over those who are connected; collectives of ``torch.distributed`` take only groups they know."""
    from torch.distributed import distributed_c10d

    options: Any = distributed_c10d.AllreduceOptions()
    options.reduceOp, options.timeout = operation, limit
    group.allreduce([tensor], options).wait()


def running_parallel() -> Any:
    """The DistributedDataParallel module that runs its forward pass now, or None.

    A module inside it has no public way to the wrapper around it.
    """
    return DistributedDataParallel._active_ddp_module


def processes_sharding(module: Any) -> int:
    """Over how many processes ``fully_shard`` averages the gradients of a module; 0 for other modules.

    Other mesh dimensions, such as tensor parallelism, do not count. The public mesh of a parameter does not tell which
    dimensions these are.
    """
    if not hasattr(module, "_get_fsdp_state"):
        return 0
    group = module._get_fsdp_state()._fsdp_param_group
    mesh = None if group is None else group.mesh_info
    return int(getattr(mesh, "shard_mesh_size", 1) * getattr(mesh, "replicate_mesh_size", 1))


def arrived(tensor: Tensor) -> Tensor:
    """The tensor itself, after waiting for the functional collective that fills it.

    The class of tensors that are on their way is private; the public ``wait()`` belongs to other collectives.
    """
    wait = getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()


# CUDA: the public functions make objects or contexts at each call, which takes longer than launching a kernel

current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
"""The number of the current CUDA device."""

current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: 0)
"""The current stream of a CUDA device, as the number that Triton takes."""
