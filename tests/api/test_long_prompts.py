"""A prompt that is too long for the model is refused as that on each surface, whatever its template does."""

from __future__ import annotations

from typing import Any

import pytest
from fake import CONTEXT_LENGTH, FakeModel
from in_process import Running

from headrace.chat.messages import Message
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.errors import TemplateError

WORDS = "word " * 200_000
TALK = [{"role": "user", "content": WORDS}]
TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "macro": "{% macro say(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
    "repeats": "{% for m in messages %}{{ m.content * 9 }}{% endfor %}",  # over a limit of templates
    "refuses": "{{ raise_exception('no') }}",
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TALK, "stream": True},
    "/v1/responses": {"input": WORDS, "stream": True},
    "/v1/messages": {"messages": TALK, "max_tokens": 5, "stream": True},
    "/api/chat": {"model": "fake", "messages": TALK, "stream": True},
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_200_000_words_exceed_the_context(serve: Any, name: str) -> None:
    model = FakeModel(template=ChatTemplate(TEMPLATES[name]))
    server: Running = serve(model)
    for path, body in BODIES.items():
        reply = server.http().post(path, json={**body, "model": model.name})
        assert reply.status_code == 400, (path, reply.text[:300])
        assert "context_length_exceeded" in reply.text or path.startswith("/api"), (path, reply.text[:300])
        assert f"limit is {CONTEXT_LENGTH:,}" in reply.text, (path, reply.text[:300])
        assert "1,000,0" in reply.text, "the number of tokens"
    assert model.engine.submitted == []


def test_texts_of_messages_may_exceed_what_a_template_adds() -> None:
    long = "word " * 250_000
    assert long in ChatTemplate(TEMPLATES["plain"]).render([Message("user", long)])
    with pytest.raises(TemplateError, match="wrote more than"):
        ChatTemplate("{% for i in range(9) %}{{ messages[0].content }}{% endfor %}").render(
            [Message("user", long)]
        )
