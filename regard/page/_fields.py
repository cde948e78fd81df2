"""What the body of a request is made of: fields that are what they say, and no others."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

__all__ = ["Fields", "Number", "Span"]

Number = Annotated[int, Field(ge=0, le=2**31)]
Span = Annotated[tuple[Number, Number], Strict(strict=False)]  # JSON has lists, no tuples


class Fields(BaseModel):
    """Fields of a request; true or "1" is no number, and a field without a meaning is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
