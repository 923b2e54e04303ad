"""Commands made from dataclasses of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from sparsewire.bench.harness.options import Option, Options, options_of

O = TypeVar("O", bound=Options)  # noqa: E741  # options


def make_callback(options: type[O], execute: Callable[[O], None]) -> Callable[..., None]:
    """A function with a parameter for each option, as typer takes it; its help is the class's docstring."""

    def callback(**values: Any) -> None:
        execute(options(**values))

    hints, defaults = get_type_hints(options), {field.name: field.default for field in fields(options)}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if defaults[name] is MISSING else defaults[name],
            annotation=Annotated[hints[name], _for_typer(option, flags)],
        )
        for name, option, flags in options_of(options)
    ]
    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    callback.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    callback.__doc__ = options.__doc__
    return callback


def _for_typer(option: Option, flags: Sequence[str]) -> Any:
    if option.by_position:
        return typer.Argument(help=option.help, show_default=False)
    is_switch = "/" in flags[0]  # its default is neither of its two flags, which typer cannot show
    return typer.Option(*flags, min=option.min, help=option.help, show_default=not is_switch)
