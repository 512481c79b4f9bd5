"""What can be trained, and what does each single record say? Gradients are clipped record by record, exactly.

Parameters are one flat vector. For a layer y = W x + b the gradient of one record is the outer product of what comes in
and what comes back, so its norm is known without ever forming it, and the clipped sum is one matrix product.

Law for future editors: what a record contributes is computed from that record and the parameters alone, digit by digit.
A matrix product over all records may round one of them otherwise when another is there, and a parameter that amplifies
that would let a record move more than its clip; so products on the way to a record's gradient go row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpbalance.clock import chance
from dpbalance.errors import OptionError

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

SOFTMAX, MLP = "softmax", "mlp"
KINDS = (SOFTMAX, MLP)

FEATURES_MAX, CLASSES_MAX, HIDDEN_MAX = 1_000_000, 100_000, 100_000

FEATURE_MAX = 1e4
"""Features beyond this are drawn back to it: no record can make a number that is none."""

PARAMETER_MAX = 1e4
"""No device takes a model with a parameter beyond this: products with features stay far below where doubles round."""

CLIP_SAFETY = 1e-9
"""Records are clipped to this much less than they may have, so that rounding of the sum cannot lift one above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model by its public description; devices run no code but their own."""

    kind: str
    features: int
    classes: int
    hidden: int = 0
    seed: int = 0
    """Of the first parameters, where they are drawn."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"a model is one of {', '.join(KINDS)}, not {self.kind!r}")
        for name, least, most in (
            ("features", 1, FEATURES_MAX),
            ("classes", 2, CLASSES_MAX),
            ("hidden", 1 if self.kind == MLP else 0, HIDDEN_MAX),
            ("seed", 0, 2**63),
        ):
            if not least <= getattr(self, name) <= most:
                raise OptionError(f"{name} of a model must be from {least} to {most}, not {getattr(self, name)!r}")


class Model(Protocol):
    """What training needs of a model."""

    size: int

    def initial(self) -> Floats: ...

    def clipped_sum(self, parameters: Floats, x: Floats, y: Labels, clip: float) -> Floats:
        """The sum over records of their loss gradients, each drawn back to this norm."""

    def logits(self, parameters: Floats, x: Floats) -> Floats: ...

    def named(self, parameters: Floats) -> dict[str, Floats]:
        """The parameters by layer."""


class Softmax:
    """Softmax regression: begins at nothing."""

    def __init__(self, spec: ModelSpec) -> None:
        self.shape = (spec.features, spec.classes)
        self.size = (spec.features + 1) * spec.classes

    def initial(self) -> Floats:
        return np.zeros(self.size)

    def logits(self, parameters: Floats, x: Floats) -> Floats:
        weight, bias = self._parts(parameters)
        return _each_row(x, weight) + bias

    def clipped_sum(self, parameters: Floats, x: Floats, y: Labels, clip: float) -> Floats:
        with np.errstate(all="ignore"):
            error = _errors(self.logits(parameters, x), y)
            norm = np.sqrt(_squares(error) * (_squares(x) + 1))
        x, error = _bounded(norm, clip, [x], [error])
        return np.concatenate([(x.T @ error).ravel(), error.sum(axis=0)])

    def named(self, parameters: Floats) -> dict[str, Floats]:
        return dict(zip(("weight", "bias"), self._parts(parameters), strict=True))

    def _parts(self, parameters: Floats) -> tuple[Floats, Floats]:
        features, classes = self.shape
        return parameters[: features * classes].reshape(self.shape), parameters[features * classes :]


class Perceptron:
    """One hidden layer of tanh units."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        d, h, k = spec.features, spec.hidden, spec.classes
        self._shapes = ((d, h), (h,), (h, k), (k,))
        self._ends = np.cumsum([math.prod(each) for each in self._shapes]).tolist()
        self.size = int(self._ends[-1])

    def initial(self) -> Floats:
        random = chance(self._spec.seed)
        first = random.standard_normal(self._shapes[0]) / math.sqrt(self._spec.features)
        return np.concatenate([first.ravel(), np.zeros(self.size - first.size)])

    def logits(self, parameters: Floats, x: Floats) -> Floats:
        w1, b1, w2, b2 = self._parts(parameters)
        return _each_row(np.tanh(_each_row(x, w1) + b1), w2) + b2

    def clipped_sum(self, parameters: Floats, x: Floats, y: Labels, clip: float) -> Floats:
        w1, b1, w2, b2 = self._parts(parameters)
        with np.errstate(all="ignore"):
            hidden = np.tanh(_each_row(x, w1) + b1)
            out = _errors(_each_row(hidden, w2) + b2, y)
            back = _each_row(out, np.ascontiguousarray(w2.T)) * (1 - hidden**2)
            norm = np.sqrt(_squares(out) * (_squares(hidden) + 1) + _squares(back) * (_squares(x) + 1))
        x, hidden, out, back = _bounded(norm, clip, [x, hidden], [out, back])
        return np.concatenate([(x.T @ back).ravel(), back.sum(axis=0), (hidden.T @ out).ravel(), out.sum(axis=0)])

    def named(self, parameters: Floats) -> dict[str, Floats]:
        return dict(zip(("weight1", "bias1", "weight2", "bias2"), self._parts(parameters), strict=True))

    def _parts(self, parameters: Floats) -> list[Floats]:
        pieces = np.split(parameters, self._ends[:-1])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def made(spec: ModelSpec) -> Model:
    """The model of this description."""
    return Softmax(spec) if spec.kind == SOFTMAX else Perceptron(spec)


def losses(logits: Floats, y: Labels) -> Floats:
    """Cross entropy of each record, in nats."""
    with np.errstate(all="ignore"):
        top = logits.max(axis=1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        return np.asarray(total - logits[np.arange(len(y)), y])


def capped(losses_: Floats, cap: float) -> Floats:
    """Losses from 0 to the cap; one that is no finite number counts as the cap."""
    return np.where(np.isfinite(losses_), np.clip(losses_, 0.0, cap), cap)


def accuracy(logits: Floats, y: Labels) -> float:
    """Share of records whose class is the likeliest."""
    return float(np.mean(logits.argmax(axis=1) == y)) if len(y) else math.nan


def usable(spec: ModelSpec, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Floats, Labels]:
    """The records as this model can take them. What becomes of one record depends on that record alone."""
    features = np.asarray(x, dtype=np.float64)
    labels = np.asarray(y, dtype=np.float64)
    if features.ndim != 2 or features.shape[1] != spec.features or labels.shape != (len(features),):
        raise OptionError(f"records must have {spec.features} features and one label each")
    kept = np.isfinite(features).all(axis=1) & (labels >= 0) & (labels < spec.classes) & (labels == np.floor(labels))
    return np.clip(features[kept], -FEATURE_MAX, FEATURE_MAX), labels[kept].astype(np.int64)


def _errors(logits: Floats, y: Labels) -> Floats:
    """Softmax minus one-hot: the gradient of the cross entropy by the logits."""
    error = np.exp(logits - logits.max(axis=1)[:, None])
    error /= error.sum(axis=1)[:, None]
    error[np.arange(len(y)), y] -= 1
    return np.asarray(error)


def _squares(rows: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _each_row(rows: Floats, matrix: Floats) -> Floats:
    """The product, one row at a time: the digits of one row do not depend on how many others there are."""
    return np.asarray(np.matmul(rows[:, None, :], matrix)[:, 0, :])


def _bounded(norm: Floats, clip: float, inputs: list[Floats], errors: list[Floats]) -> list[Floats]:
    """Inputs and errors of records drawn back to the clip; a record with a number that is none counts exactly zero.

    Such a number in any of them is one in the norm, too, which is a sum of all their squares.
    """
    finite = np.isfinite(norm)
    with np.errstate(all="ignore"):
        factor = np.minimum(1.0, clip * (1 - CLIP_SAFETY) / norm)
    kept = [np.where(finite[:, None], each, 0.0) for each in inputs]
    return kept + [np.where(finite[:, None], each * factor[:, None], 0.0) for each in errors]
