"""The spec of a sweep: a base config, precisions, seeds, fields to vary. It is kept as `sweep.toml`."""

from __future__ import annotations

import itertools
import math
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precgui.config.dotted import put_at
from precgui.config.precision_traits import EMULATED
from precgui.config.recipes import DEFAULT_RECIPE
from precgui.config.refusals import refusals
from precgui.config.section import table_text
from precgui.config.toml_file import parse_toml, read_toml, toml_fault
from precgui.config.tree import RunConfig
from precgui.config.validation import ConfigError, build, key_table, table_paths
from precgui.runs.verdict.interim_analyses import InterimAnalyses, planned_looks
from precgui.sentences import L_, Sentence, recased, together
from precgui.sweeps.errors import SweepError

MOST_RUNS = 2000  # of the seeds that are planned at first
MOST_MEMBERS = 10_000  # with warm-up, twins, rounds of timing and the seeds that came later
FIXED_FIELDS = ("precision", "seed", "title")  # the sweep itself sets these


@dataclass(frozen=True)
class Arm:
    """One combination that is compared: a precision with values of the varied fields, over all seeds."""

    precision: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """For example `bf16-amp` or `bf16-amp optimizer.lr=0.003`."""
        return " ".join([self.precision, *(f"{path}={value}" for path, value in self.settings)])


class SweepSpec(BaseModel):
    """The content of `sweep.toml`. `config` is the tree of a complete RunConfig."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = Field("", max_length=200)
    precisions: list[str] = Field(min_length=1, max_length=64)
    baseline: str
    seeds: Annotated[int, Field(ge=1, le=1000)]
    first_seed: Annotated[int, Field(ge=0, lt=2**62)] = 0
    looks: list[int]
    twins: Annotated[int, Field(ge=0, le=1000)] = 3
    timing_rounds: Annotated[int, Field(ge=0, le=100)] = 0
    order_seed: Annotated[int, Field(ge=0, lt=2**63)]
    stop_arm_after_failures: Annotated[int, Field(ge=0, le=1000)] = 2
    vary: dict[str, list[Any]] = Field(default_factory=dict)
    config: dict[str, Any]

    @property
    def arm_count(self) -> int:
        """How many combinations there are."""
        return len(self.precisions) * math.prod(map(len, self.vary.values()))

    def arms(self) -> list[Arm]:
        """Every combination, precisions first, in the order of the file."""
        choices = [[(path, value) for value in values] for path, values in self.vary.items()]
        return [Arm(precision, settings) for settings in itertools.product(*choices) for precision in self.precisions]

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks that its runs train, as it states them."""
        return [str(task) for task in self.vary.get("task", [self.config.get("task", "")])]

    @property
    def baseline_count(self) -> int:
        """How many of the combinations are a baseline."""
        return 1 if len(self.precisions) == 1 else self.arm_count // len(self.precisions)

    def baselines(self) -> list[Arm]:
        """The arms in the baseline's precision, one for each combination of the varied fields; with one precision the
        arm of the first values, beside which the other values are measured in pairs."""
        arms = self.arms()
        return arms[:1] if len(self.precisions) == 1 else [arm for arm in arms if arm.precision == self.baseline]

    def config_of(self, arm: Arm, seed: int, changes: Mapping[str, Any] | None = None) -> RunConfig:
        """The config of one run. Raises SweepError for settings that no run can have."""
        tree = RunConfig.model_validate(self.config).model_dump()
        changed = {"precision": arm.precision, "seed": seed, **dict(arm.settings), **(changes or {})}
        for path, value in changed.items():
            put_at(tree, path, value)
        try:
            return build(tree)
        except ConfigError as error:
            raise SweepError(Sentence("the arm {arm} cannot be run: {why}", arm=arm.name, why=error)) from None


def members_of(spec: SweepSpec, blocks: int) -> int:
    """The most runs that so many seeds or rounds of timing have: each arm once, and a twin of each baseline."""
    return blocks * (spec.arm_count + spec.baseline_count)


def make_spec(
    base: RunConfig,
    precisions: Sequence[str],
    seeds: int,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    baseline: str = "",
    twins: int = 3,
    timing_rounds: int = 0,
    order_seed: int = 0,
    title: str = "",
) -> SweepSpec:
    """A checked spec; the baseline is the precision named so, else fp32, else the first one. Raises SweepError."""
    names = [_checked_precision(base, name) for name in precisions]
    for name in names:
        if names.count(name) > 1:
            raise SweepError(Sentence("the precision {precision} is named twice; name each once", precision=name))
    if not names:
        raise SweepError(L_("a sweep needs one precision at least; name some, e.g. --precisions fp32,bf16-amp"))
    chosen = _checked_precision(base, baseline) if baseline else "fp32" if "fp32" in names else names[0]
    if chosen not in names:
        raise SweepError(
            Sentence(
                "the baseline {baseline} is not among the precisions {precisions}",
                baseline=chosen,
                precisions=", ".join(names),
            )
        )
    tree = {
        "title": title, "precisions": names, "baseline": chosen, "seeds": seeds, "first_seed": base.seed,
        "looks": list(planned_looks(max(seeds, 1)).seeds), "twins": twins, "timing_rounds": timing_rounds,
        "order_seed": order_seed, "vary": {path: list(values) for path, values in (vary or {}).items()},
        "config": base.model_dump(exclude_none=True),
    }  # fmt: skip
    spec = check_spec(tree)
    for arm in spec.arms():
        if found := refusals(spec.config_of(arm, spec.first_seed)):
            why = together(*found.values(), between="; ")
            raise SweepError(Sentence("the arm {arm} cannot be run: {why}", arm=arm.name, why=why))
    return spec


def formats_of_layers(spec: SweepSpec) -> RunConfig | None:
    """The config whose formats of layers a sweep verifies beside its baseline; None for another kind of sweep."""
    others = [arm for arm in spec.arms() if arm.precision != spec.baseline]
    if spec.vary or len(others) != 1 or not others[0].precision.startswith(EMULATED):
        return None
    planned = spec.config_of(others[0], spec.first_seed)
    return planned if planned.precision_options.layers else None


def _checked_precision(base: RunConfig, name: str) -> str:
    return build(base.model_dump() | {"precision": name}).precision


def check_spec(tree: Mapping[str, Any]) -> SweepSpec:
    """The spec of a tree of plain values, with every arm checked. Raises SweepError."""
    try:
        spec = SweepSpec.model_validate(tree)
        InterimAnalyses(tuple(spec.looks))
        build(spec.config)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        fault = recased(first["msg"], "lower")
        raise SweepError(Sentence("{setting}: {fault}", setting=path, fault=fault)) from None
    except ConfigError as error:
        raise SweepError(Sentence("{setting}: {fault}", setting="config", fault=error)) from None
    except ValueError as error:
        raise SweepError(*error.args) from None
    for path in spec.vary:
        _check_varied(path, spec.vary[path])
    runs = spec.arm_count * spec.seeds  # counted before one of them is made
    if runs > MOST_RUNS:
        raise SweepError(
            Sentence(
                "{runs} runs are more than {most}; choose fewer precisions, seeds or values", runs=runs, most=MOST_RUNS
            )
        )
    members = members_of(spec, spec.seeds + spec.timing_rounds)
    if members > MOST_MEMBERS:
        raise SweepError(
            Sentence(
                "{runs} runs with those for times are more than {most}; choose fewer rounds",
                runs=members,
                most=MOST_MEMBERS,
            )
        )
    for arm in spec.arms():
        spec.config_of(arm, spec.first_seed)
    return spec


def _check_varied(path: str, values: Sequence[Any]) -> None:
    if path in FIXED_FIELDS:
        cures = {
            "precision": Sentence("--vary {key}: the sweep sets it itself; use --precisions", key=path),
            "seed": Sentence("--vary {key}: the sweep sets it itself; use --seeds", key=path),
        }
        raise SweepError(cures.get(path, Sentence("--vary {key}: the sweep sets it itself; leave it out", key=path)))
    if path not in {key for key, _, _ in key_table()}:
        raise SweepError(Sentence("--vary {key}: unknown key; `precgui run --keys` lists the known ones", key=path))
    if len(values) < 2 or len({repr(value) for value in values}) < len(values):
        raise SweepError(Sentence("--vary {key}: name two different values at least, e.g. {key}=1,2", key=path))


def read_spec(path: Path) -> SweepSpec:
    """The spec of a `sweep.toml`. Raises SweepError."""
    try:
        return check_spec(read_toml(path))
    except SweepError as error:
        raise SweepError(Sentence("{file}: {error}", file=path, error=error)) from None
    except (OSError, ValueError) as error:
        raise SweepError(toml_fault(path, error, L_("the folder of a sweep"))) from None


def spec_toml(spec: SweepSpec) -> str:
    """The spec as TOML that `read_spec` reads back."""
    return tomli_w.dumps(spec.model_dump(exclude_none=True))


def repeat_command(spec: SweepSpec, seeds: int) -> str:
    """The command that runs the same sweep again, from the default recipe and all that differs from it."""
    changed = build(spec.config).model_dump(exclude_defaults=True, exclude={"precision", "title", "seed"})
    words = [DEFAULT_RECIPE, "--precisions", ",".join(spec.precisions), "--seeds", str(seeds)]
    for path, value in _flat(changed):
        words += ["--set", f"{path}={value}"]
    for path, values in spec.vary.items():
        words += ["--vary", f"{path}={','.join(map(str, values))}"]
    words += ["--timing-rounds", str(spec.timing_rounds)] if spec.timing_rounds else []
    return f"precgui sweep {shlex.join(words)} --baseline {shlex.quote(spec.baseline)} -o DIR"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if prefix + key in table_paths():
            yield prefix + key, table_text(value)
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def parse_vary(text: str) -> tuple[str, list[Any]]:
    """`key=a,b` as the key and its values, each as TOML where it is some. Raises SweepError."""
    path, equals, values = text.partition("=")
    if not path.strip() or not equals:
        raise SweepError(
            Sentence("--vary {text} has no values; write key=a,b, e.g. optimizer.lr=0.001,0.003", text=repr(text))
        )
    return path.strip(), [*_values(values)]


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` with the value as TOML where it is some. Raises SweepError."""
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise SweepError(
            Sentence("--slurm-set {text} has no value; write key=value, e.g. timeout_min=60", text=repr(text))
        )
    return key.strip(), value.strip() if "," in value else next(_values(value))


def _values(text: str) -> Iterator[Any]:
    for part in text.split(","):
        try:
            yield parse_toml(f"v = {part.strip()}")["v"]
        except tomllib.TOMLDecodeError:
            yield part.strip()
        except ValueError as error:  # a number of too many digits, or lists in lists without end
            raise SweepError(Sentence("{text}...: {error}", text=part.strip()[:40], error=error)) from None
