"""Ways to train in several processes: rows for the page, and what the tests start."""

from dataclasses import dataclass

from tests.training_reality.distributed.training import VARIANTS


@dataclass(frozen=True)
class Layout:
    """One row.

    Attributes:
        key: how the program of the processes knows it.
        data_ranks: how many of the processes have batches of their own.
        tensor_ranks: how many share one batch, each with a part of every layer.
        variants: how it is trained, see ``VARIANTS``.
        quick: those among them that every test run has time for.
        apart: tag and layer of numbers that are those of parts, and not compared.
    """

    name: str
    key: str
    data_ranks: int
    tensor_ranks: int = 1
    variants: tuple[str, ...] = ("float64",)
    quick: tuple[str, ...] = ()
    apart: tuple[tuple[str, str], ...] = ()
    note: str = ""

    @property
    def processes(self):
        return self.data_ranks * self.tensor_ranks

    def variants_on(self, device, pace):
        """The quick ones, or the others.

        On one GPU processes can only meet over gloo, and that takes its tensors from DDP alone, not compiled.
        """
        chosen = [name for name in self.variants if (name in self.quick) == (pace == QUICK)]
        if device == "cpu":
            return chosen
        return [name for name in chosen if self.key == "ddp" and not VARIANTS[name].compiled]


QUICK, SLOW = PACES = "quick", "slow"
EVERY_VARIANT = tuple(VARIANTS)
COMPILED = ("float64", "compiled, checkpointing")
SHARED_OUTPUT = (("Output Norm", "act"),)

LAYOUTS = (
    Layout(
        *("DistributedDataParallel", "ddp", 2),
        variants=EVERY_VARIANT,
        note="also a layer that one process skips",
    ),
    Layout(
        *("fully_shard (FSDP2)", "fsdp", 3),
        variants=EVERY_VARIANT,
        quick=("float64",),
        note="also parts of unequal size",
    ),
    Layout("fully_shard, sharded and replicated (HSDP)", "hsdp", 4, variants=COMPILED),
    Layout(
        *("tensor parallel (parallelize_module)", "tp", 1, 2, COMPILED),
        apart=SHARED_OUTPUT,
        note="a layer without parameters between two split ones shows the norms of its local parts",
    ),
    Layout("fully_shard and tensor parallel", "fsdp+tp", 2, 2, COMPILED, apart=SHARED_OUTPUT, note="the same"),
)
