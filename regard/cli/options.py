"""The fields of configuration dataclasses as command-line options, and as keys of a TOML file.

Names, types, defaults and help texts are those of the fields. The command line overrides the file,
which overrides the defaults.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import click
from click.core import ParameterSource

from regard.cli.errors import MisuseError
from regard.cli.parameters import Option, option_name

__all__ = ["Overrides", "config_options", "read_fields"]

Config = TypeVar("Config")


@dataclass(frozen=True, kw_only=True)
class Overrides(Generic[Config]):
    """The fields of a dataclass that the user set."""

    kind: type[Config]
    values: Mapping[str, Any]
    names: Mapping[str, str]
    """The option, or the key and file, of each field of the command's dataclasses."""

    def apply(self, base: Config | None = None) -> Config:
        """Return the dataclass: `base`, or the defaults, with the user's values.

        Raises:
            MisuseError: if a value is invalid; the message names options instead of fields.
        """
        try:
            if base is None:
                return self.kind(**self.values)
            return replace(base, **self.values)  # type: ignore[type-var]  # it is a dataclass
        except (TypeError, ValueError) as error:
            raise MisuseError(self.with_option_names(str(error))) from error

    def with_option_names(self, message: str) -> str:
        """Replace ``Config.field`` and ``field=value`` in a message by options."""
        message = re.sub(r"\b[A-Z]\w*\.(\w+)", lambda m: self.names.get(m[1], m[0]), message)
        options = {name: option for name, option in self.names.items() if option.startswith("--")}
        return re.sub(
            r"\b(\w+)=(?=\S)", lambda m: f"{options[m[1]]} " if m[1] in options else m[0], message
        )


def config_options(**configs: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of some dataclasses.

    The command also gets the option ``--config FILE``, a TOML file with the same fields: at the top
    level, or those of each dataclass in a section named after the command's argument.

    Args:
        configs: the dataclass of each argument of the command that is an `Overrides`. Every field
            has a default and a description in ``metadata["help"]``; the first line of the
            dataclass's docstring is the heading of its options in the help text.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapper(**arguments: Any) -> None:
            context = click.get_current_context()
            file: Path | None = arguments.pop("config")
            names = {
                field.name: option_name(field.name)
                for config in configs.values()
                for field in _fields(config)
            }
            read = {} if file is None else read_fields(file, configs)
            for argument, config in configs.items():
                values = {name: value for name, value in read.items() if name in _names(config)}
                names |= {name: f"{name} in {file}" for name in values}
                for field in _fields(config):
                    value = arguments.pop(field.name)
                    source = context.get_parameter_source(field.name)
                    if source is ParameterSource.COMMANDLINE:
                        values[field.name] = value
                        names[field.name] = option_name(field.name)
                arguments[argument] = Overrides(kind=config, values=values, names=names)
            command(**arguments)

        own = inspect.signature(command).parameters
        parameters = [*(own[name] for name in own if name not in configs), _file()]
        for config in configs.values():
            parameters += _parameters(config)
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect reads
        return wrapper

    return decorate


def read_fields(file: Path, configs: Mapping[str, type[Any]]) -> dict[str, Any]:
    """Read the fields that a TOML file sets.

    Args:
        file: the file.
        configs: the dataclass of each section.

    Raises:
        MisuseError: for a file that can't be read, and for what is no field.

    Example:
        >>> import tempfile
        >>> from regard.gpt import GPTConfig
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "recipe.toml")
        ...     _ = file.write_text("layers = 2")
        ...     read_fields(file, {"gpt": GPTConfig})
        {'layers': 2}
    """
    import tomllib  # here, since every help would wait for it

    try:
        content = tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise MisuseError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:  # syntax errors, and integers with too many digits
        raise MisuseError(f"{file} is not a TOML file: {error}") from None
    except RecursionError:
        raise MisuseError(f"{file} is not a TOML file: brackets are nested too deep") from None
    values: dict[str, Any] = {}
    everything = [name for config in configs.values() for name in _names(config)]
    for name, value in content.items():
        if isinstance(value, dict) and name in configs:
            known = _names(configs[name])
            for inner, setting in value.items():
                _require_known(f"{file}, section [{name}]", inner, known)
                values[inner] = setting
        else:
            kind = "section" if isinstance(value, dict) else "field"
            sections = list(configs) if kind == "section" else []
            _require_known(str(file), name, sections or everything, kind)
            values[name] = value
    return values


def _require_known(where: str, name: str, known: list[str], kind: str = "field") -> None:
    if name not in known:
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=1, cutoff=0.0)
        raise MisuseError(f"{where} has no {kind} {name!r}; did you mean {near[0]!r}?")


def _fields(config: type[Any]) -> list[Field[Any]]:
    """Those that a command has options for."""
    return [field for field in fields(config) if field.metadata["on_command"]]


def _names(config: type[Any]) -> list[str]:
    return [field.name for field in _fields(config)]


def _file() -> inspect.Parameter:
    option = Option(
        help="TOML file that sets any of the fields below; the command line wins over it.",
        metavar="FILE",
    )
    return inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, option],
    )


def _parameters(config: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(config)
    heading = (inspect.getdoc(config) or config.__name__).splitlines()[0].split(". ")[0].rstrip(".")
    return [_parameter(field, hints[field.name], heading) for field in _fields(config)]


def _parameter(field: Field[Any], kind: Any, heading: str) -> inspect.Parameter:
    assert field.default is not MISSING, f"{field.name} has no default"
    metavar = None
    if get_origin(kind) is Literal:  # the dataclass checks the value and lists the choices
        kind, metavar = str, "|".join(get_args(kind))
    option = Option(help=field.metadata["help"], metavar=metavar, heading=heading)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=Annotated[kind, option],
    )
