"""All of Ollama's endpoints as one router."""

from __future__ import annotations

from fastapi import APIRouter

from headrace.api.ollama import chat, embed, generate, manage, models, pull

router = APIRouter()
for room in (generate, chat, embed, models, manage, pull):
    router.include_router(room.router)
