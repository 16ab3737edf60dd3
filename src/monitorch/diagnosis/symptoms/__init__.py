"""All symptoms that a diagnosis looks for."""

from .activations import (
    AttentionCollapse,
    DeadUnits,
    ExpertCollapse,
    ExplodingSignal,
    RankCollapse,
    SaturatedActivation,
    SymmetricUnits,
)
from .base import Symptom
from .data import InputScale, OutputLossMismatch, UnrepresentativeBatches
from .gradients import NoGradient, NotFinite, Underflow, VanishingGradient
from .loss import BadInitialLoss, LeftTrainMode, LossSpike, NoLabelSignal, Overfitting, TrainEvalMismatch
from .optimizer import (
    NoisyGradient,
    NoProgress,
    NoUpdate,
    Oscillation,
    OverRegularised,
    StaleGradient,
    StepTooLarge,
)

SYMPTOMS: tuple[type[Symptom], ...] = (
    NoUpdate,
    StaleGradient,
    LeftTrainMode,
    OutputLossMismatch,
    InputScale,
    UnrepresentativeBatches,
    SymmetricUnits,
    Underflow,
    SaturatedActivation,
    ExplodingSignal,
    BadInitialLoss,
    OverRegularised,
    StepTooLarge,
    NoisyGradient,
    NoProgress,
    NotFinite,
    VanishingGradient,
    DeadUnits,
    ExpertCollapse,
    RankCollapse,
    AttentionCollapse,
    NoGradient,
    LossSpike,
    NoLabelSignal,
    TrainEvalMismatch,
    Overfitting,
    Oscillation,
)
"""Causes come first: of two that began at the same time, the one listed earlier is the cause."""

__all__ = ["SYMPTOMS", "Symptom", *(symptom.__name__ for symptom in SYMPTOMS)]
