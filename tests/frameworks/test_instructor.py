"""The instructor package: a typed extraction."""

from __future__ import annotations

import pytest
from in_process import Running
from pydantic import BaseModel, Field

instructor = pytest.importorskip("instructor", reason="make test-frameworks installs it")


class Person(BaseModel, extra="forbid"):
    """Who is spoken of."""

    name: str = Field(pattern="^[A-Z][a-z]{2,8}$")
    age: int = Field(ge=1, le=99)


@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "TOOLS"])
def test_a_person_is_extracted(server: Running, mode: str) -> None:
    client = instructor.from_openai(server.openai(), mode=getattr(instructor.Mode, mode))
    person = client.chat.completions.create(
        model=server.model.name,
        messages=[{"role": "user", "content": "Anna is thirty years old."}],
        response_model=Person,
        max_tokens=200,
        max_retries=0,
        temperature=0,
    )
    assert isinstance(person, Person)
