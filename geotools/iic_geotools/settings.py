"""Settings, each declared once: a field of a frozen dataclass that carries its default, help, unit and group.

    @dataclass(frozen=True, kw_only=True)
    class Region(Settings, group="Region"):
        bounds: Bounds | None = setting(None, "Map only this region.", metavar="LIST", parse=parse_bounds)

    @dataclass(frozen=True)
    class ClipArguments(Region):
        scene: PathLike

    @takes(ClipArguments)
    def clip(arguments: ClipArguments) -> Summary: ...

    clip("scene.tif", bounds=(0, 0, 9, 9))  # signature and types are those of the dataclass

Groups are combined by inheritance, and a stage takes only the group it needs (`settings.part(Region)`). A command takes
a settings class as one parameter (`iic_geotools.cli.app`); documentation and other programs read `describe`.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from iic_geotools.errors import UsageError

PathLike = str | os.PathLike[str]
P = ParamSpec("P")
A = TypeVar("A")
Owner = TypeVar("Owner")
R = TypeVar("R")
S = TypeVar("S", bound="Settings")
T = TypeVar("T")
REQUIRED: Any = MISSING
"""Default of a setting that must be given."""
_KEY = "setting"
_LARGEST = 1e300
_MODULES = re.compile(r"\b(?:\w+\.)+(?=\w)")
_LONGEST = 2.0**63 - 1025


@dataclass(frozen=True)
class Setting:
    """Help, form and limits of a setting.

    Attributes:
        help: What it does, in a sentence or two. Other settings are named in backticks.
        details: What only documentation adds to the help.
        metavar: What a value looks like, or its unit: "M2", "MIN,MAX".
        parse: Turns the text of an option, and the setting's name for errors, into a value.
        repeat: Whether the option may be repeated; `parse` then takes a list of texts.
        writes: The suffixes of the file that it names, if it is an output.
        envvar: The environment variable that gives the default of the option.
        least: The smallest number that it may be.
        most: The largest one.
        first: Whether help shows it before the groups.
        flags: How the option is written, if not as the field's name with dashes.
        option: Whether commands have it; False for what only Python can give.
    """

    help: str
    details: str = ""
    metavar: str | None = None
    parse: Callable[[Any, str], Any] | None = None
    repeat: bool = False
    writes: tuple[str, ...] = ()
    envvar: str | None = None
    least: float | None = None
    most: float | None = None
    first: bool = False
    flags: tuple[str, ...] = ()
    option: bool = True


def setting(default: T, help: str, **about: Any) -> T:
    """Declare a field of a settings dataclass."""
    metadata = {_KEY: Setting(help, **about)}
    if isinstance(default, (dict, list, set)):
        declared: Any = field(default_factory=default.copy, metadata=metadata)
    else:
        declared = field(default=default, metadata=metadata)
    return declared  # type: ignore[no-any-return]


class Settings:
    """Base of settings dataclasses.

    Attributes:
        group: The heading under which help and documentation list the settings that a class declares.
    """

    group: ClassVar[str] = "Options"

    def __init_subclass__(cls, group: str | None = None) -> None:
        """Name the group of the settings that the class declares."""
        cls.group = group or "Options"

    def part(self, kind: type[S]) -> S:
        """Return the settings of one group, or of another class that this one contains."""
        return kind(**{name: getattr(self, name) for name in names(kind)})

    def values(self) -> dict[str, Any]:
        """Return all settings by name, as keyword arguments."""
        return {name: getattr(self, name) for name in names(type(self))}

    def changed(self) -> dict[str, Any]:
        """Return the settings that do not have their default."""
        defaults = {declared.name: _default(declared) for declared in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in self.values().items() if value != defaults[name]}

    def as_json(self) -> dict[str, Any]:
        """Return all settings as JSON holds them."""
        return {name: _plain(value) for name, value in self.values().items()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Make settings from those of `values` that the class has."""
        known = set(names(cls))
        return cls(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True)
class Described:
    """A setting as help, documentation and other programs see it.

    Attributes:
        name: The name of the argument.
        group: The heading that it stands under.
        kind: The type of an option's value: bool, int, float, str, Path, or a Literal.
        default: The default.
        required: Whether it must be given.
        optional: Whether it may be None.
        about: What the field says about itself.
    """

    name: str
    group: str
    kind: Any
    default: Any
    required: bool
    optional: bool
    about: Setting

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may take, if they are few."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


def describe(kind: type[Any]) -> tuple[Described, ...]:
    """Return the settings of a class: those of its bases from left to right, then its own."""
    if kind in _described:
        return _described[kind]
    entries: dict[str, Described] = {}
    for base in kind.__bases__:
        if issubclass(base, Settings):
            entries |= {entry.name: entry for entry in describe(base) if entry.name not in entries}
    own = inspect.get_annotations(kind)
    for declared in fields(kind) if "__dataclass_fields__" in kind.__dict__ else ():
        if declared.name in own and _KEY in declared.metadata and declared.name not in entries:
            entries[declared.name] = _describe(kind, declared)
    return _described.setdefault(kind, tuple(entries.values()))


_described: dict[type[Any], tuple[Described, ...]] = {}


def names(kind: type[Any]) -> list[str]:
    """Return the names of the settings of a class."""
    return [entry.name for entry in describe(kind)]


@overload
def takes(arguments: Callable[P, A]) -> Callable[[Callable[[A], R]], Callable[P, R]]: ...


@overload
def takes(
    arguments: Callable[P, A], *, method: Literal[True]
) -> Callable[[Callable[[Owner, A], R]], Callable[Concatenate[Owner, P], R]]: ...


def takes(arguments: Any, *, method: bool = False) -> Any:
    """Make a function, or a method, of one settings object take the fields of its class as arguments.

    Signature, types and the list of arguments in the docstring come from the class.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> R:
            try:
                bound = signature.bind(*args[method:], **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            settings = arguments(*bound.args, **bound.kwargs)
            if isinstance(settings, Settings):
                check_values(type(settings), vars(settings))
            return function(*args[:method], settings)

        signature = inspect.signature(arguments)
        owner = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)] if method else []
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*owner, *signature.parameters.values()],
            return_annotation=inspect.signature(function).return_annotation,
        )
        call.__doc__ = function.__doc__ if method else _with_arguments(function.__doc__ or "", arguments)
        return call

    return decorate


def from_plain(kind: Any, value: Any, name: str = "") -> Any:
    """Build a value of a type from what JSON holds: dataclasses from objects, tuples from lists.

    Args:
        kind: The type: a dataclass, a tuple, a union, a Literal or a plain type.
        name: What the value is called in errors.

    Raises:
        UsageError: It is of another type, or an object has a field that the class does not have.
    """
    origin, members = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _object_from_plain(kind, value)
    if origin in (Union, UnionType):
        return _member_from_plain(kind, value, name)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = members[:1] * len(value) if members[-1] is ... else members
        if len(kinds) == len(value):
            return tuple(from_plain(member, entry, name) for member, entry in zip(kinds, value, strict=True))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number and abs(value) < _LARGEST:
        return float(value)
    if kind is int:
        fits = is_number and isinstance(value, int) and abs(value) < 2**63
    elif origin is Literal:
        fits = isinstance(value, str) and value in members
    else:
        fits = kind is Any or (kind is not float and isinstance(kind, type) and isinstance(value, kind))
    if fits:
        return value
    raise _wrong_type(kind, value, name)


def _object_from_plain(kind: Any, value: Mapping[str, Any]) -> Any:
    kinds = get_type_hints(kind)
    # Earlier versions had settings that nothing needs any more.
    value = {key: entry for key, entry in value.items() if key not in getattr(kind, "retired", ())}
    if unknown := sorted(set(value) - {declared.name for declared in fields(kind)}):
        raise UsageError(
            f"There is no setting {', '.join(unknown)} in this version; use the one that wrote it."
        )
    try:
        return kind(**{key: from_plain(kinds[key], entry, key) for key, entry in value.items()})
    except TypeError as error:
        raise UsageError(f"A setting is missing: {error}.") from error


def _member_from_plain(kind: Any, value: Any, name: str) -> Any:
    """Build a value of the first member of a union that it fits."""
    errors = []
    for member in get_args(kind):
        try:
            return from_plain(member, value, name)
        except UsageError as error:
            errors.append(error)
    raise errors[0] if isinstance(value, Mapping) else _wrong_type(kind, value, name)


def _wrong_type(kind: Any, value: Any, name: str) -> UsageError:
    expected = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return UsageError(f"`{name}` must be {_MODULES.sub('', expected)}, not {_shown(value)}.")


def _shown(value: Any) -> str:
    return repr(str(value)[:40])


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse arguments of another type than its annotations say, in a sentence."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            parameter = signature.parameters[name]
            if parameter.annotation is parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
                continue
            with suppress(NameError):  # a type that is imported for type checkers only
                _check_type(_evaluated(parameter.annotation, function.__module__), value, name)
        return function(*args, **kwargs)

    return call


def check_values(kind: type[Any], values: Mapping[str, Any]) -> None:
    """Check the types of the fields of a settings class, and the limits of numbers.

    NaN stands for a nodata value only. A type that is only named because its module is heavy is not checked here.

    Raises:
        UsageError: A value is of another type or beyond its limits.
    """
    for name, (annotation, about) in _types(kind).items():
        if name not in values:
            continue
        value = values[name]
        _check_type(annotation, value, name)
        if (
            about is None
            or option_type(annotation)[0] not in (int, float)
            or value is None
            or name == "nodata"
        ):
            continue
        least, most = about.least, about.most
        low, high = -_LONGEST if least is None else least, _LONGEST if most is None else most
        if not low <= float(value) <= high:
            if least is None and most is None:
                limits = "a finite number of at most 64 bits"
            elif most is None:
                limits = f"{low:g} or more"
            else:
                limits = f"{high:g} or less" if least is None else f"between {low:g} and {high:g}"
            raise UsageError(f"`{name}` must be {limits}, not {str(value)[:40]}.")


def _types(kind: type[Any]) -> dict[str, tuple[Any, Setting | None]]:
    """The type of each field of a settings class, and its setting if it is one."""
    if kind in _typed:
        return _typed[kind]
    types: dict[str, tuple[Any, Setting | None]] = {}
    for owner in reversed(kind.__mro__):
        own = inspect.get_annotations(owner)
        for declared in fields(owner) if "__dataclass_fields__" in vars(owner) else ():
            if declared.name in own:
                with suppress(NameError):  # imported for type checkers only
                    types[declared.name] = (
                        _evaluated(declared.type, owner.__module__),
                        declared.metadata.get(_KEY),
                    )
    return _typed.setdefault(kind, types)


_typed: dict[type[Any], dict[str, tuple[Any, Setting | None]]] = {}


def _check_type(kind: Any, value: Any, name: str) -> None:
    if _is_of(kind, value):
        return
    plain = option_type(kind)[0]
    if get_origin(plain) is Literal:
        choices = get_args(plain)
        noun = " or ".join(choices) if len(choices) < 3 else f"one of {', '.join(choices)}"
        raise UsageError(f"`{name}` must be {noun}, not {str(value)[:40]}.")
    noun = {int: "a whole number", float: "a number"}.get(plain, "")
    raise (
        UsageError(f"`{name}` must be {noun}, not {_shown(value)}.")
        if noun
        else _wrong_type(kind, value, name)
    )


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a value is of a type as annotations write it."""
    origin, members = get_origin(kind), get_args(kind)
    plain = origin or kind
    if origin in (Union, UnionType):
        return any(_is_of(member, value) for member in members)
    if origin is Literal:
        return isinstance(value, str) and value in members
    if kind in _IS_PLAIN:
        return _IS_PLAIN[kind](value)
    if plain in (tuple, list, Sequence) and members:
        return _is_sequence_of(members, plain is tuple and members[-1] is not ..., value)
    if plain is Callable or getattr(kind, "_is_protocol", False):
        return callable(value)
    pairs = value.items() if members and isinstance(value, Mapping) else ()
    is_instance = not isinstance(plain, type) or isinstance(value, plain)
    return is_instance and all(all(map(_is_of, members, pair)) for pair in pairs)


def _is_sequence_of(members: tuple[Any, ...], fixed: bool, value: Any) -> bool:
    """Whether a value is a list, a tuple or an array of such members."""
    is_text = isinstance(value, str | bytes | Mapping)
    if is_text or not (hasattr(value, "__iter__") and hasattr(value, "__len__")):
        return False
    kinds = members if fixed else members[:1] * len(value)
    return len(kinds) == len(value) and all(map(_is_of, kinds, value))


_IS_PLAIN: dict[Any, Callable[[Any], bool]] = {
    Any: lambda value: True,
    int: lambda value: isinstance(value, Integral) and not isinstance(value, bool),
    float: lambda value: isinstance(value, Real) and not isinstance(value, bool),
    bool: lambda value: type(value).__name__ in ("bool", "bool_"),  # numpy's too
}


def markdown_table(kind: type[Any], option: Callable[[str], str] = lambda name: name) -> str:
    """Return the settings of a class as tables of Markdown, one per group; what only Python can give is left out.

    Args:
        option: Says how a setting is written, e.g. with dashes.
    """
    groups: dict[str, list[str]] = {}
    for entry in (entry for entry in describe(kind) if entry.about.option):
        written = entry.about.flags[0] if entry.about.flags else option(entry.name)
        value = entry.about.metavar or "|".join(entry.choices)
        text = " ".join(filter(None, (entry.about.help, entry.about.details)))
        cells = (f"`{written}`", f"`{value}`" if value else "", text)
        row = f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        groups.setdefault("Options" if entry.about.first else entry.group, []).append(row)
    first = groups.pop("Options", [])
    tables = {"Options": first, **groups} if first else groups
    return (
        "\n\n".join(
            "\n".join((f"**{group}**", "", "| | | |", "|---|---|---|", *rows))
            for group, rows in tables.items()
        )
        + "\n"
    )


def option_type(annotation: Any, repeat: bool = False) -> tuple[Any, bool]:
    """Return the type of one value of a field, and whether the field may be None."""
    if repeat:
        (annotation, *_) = get_args(annotation)
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [member for member in members if member is not NoneType]
    optional = len(kinds) < len(members)
    plain = [get_origin(kind) or kind for kind in kinds]
    if any(isinstance(kind, type) and issubclass(kind, os.PathLike) for kind in plain):
        return Path, optional
    return (kinds[0] if len(kinds) == 1 else str), optional


def _describe(owner: type[Any], declared: "Field[Any]") -> Described:
    about: Setting = declared.metadata[_KEY]
    # What is parsed from text may be of a type that is not imported here.
    kind, optional = (str, True)
    if about.parse is None:
        kind, optional = option_type(_evaluated(declared.type, owner.__module__), about.repeat)
    required = declared.default is MISSING and declared.default_factory is MISSING
    return Described(declared.name, owner.group, kind, _default(declared), required, optional, about)


def _evaluated(annotation: Any, module: str) -> Any:
    return eval(annotation, vars(sys.modules[module])) if isinstance(annotation, str) else annotation


def _default(declared: "Field[Any]") -> Any:
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return None if declared.default is MISSING else declared.default


def _with_arguments(doc: str, arguments: Any) -> str:
    """Put the settings of a class into the list of arguments of a docstring, or add that list."""
    doc = inspect.cleandoc(doc)
    if not isinstance(arguments, type):
        return doc
    lines = [
        f"    {entry.name}: {' '.join(filter(None, (entry.about.help, entry.about.details)))}"
        for entry in describe(arguments)
    ]
    if not lines:
        return doc
    head, mark, tail = doc.partition("\nArgs:\n")
    if mark:
        given, gap, rest = tail.partition("\n\n")
        return "".join((head, mark, given, "\n", "\n".join(lines), gap, rest))
    start = min(
        (doc.find(f"\n{section}:\n") for section in ("Returns", "Raises") if f"\n{section}:\n" in doc),
        default=len(doc),
    )
    return "\n".join((doc[:start].rstrip("\n"), "", "Args:", *lines, doc[start:])).rstrip("\n")


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return asdict(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
