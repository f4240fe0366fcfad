"""Usage bodies of providers, each with its bill computed by hand.

All prices are in nano-dollars per token: $2.50 per million tokens are 2,500. They are those of genai-prices
0.2.3 at the date of the usage, written down again in the comments; amounts are nano-dollars.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NOON = 1_795_176_000.0  # 2026-11-20 12:00 UTC


class Golden(NamedTuple):
    provider: str
    model: str
    usage: dict[str, Any]
    nano_usd: int
    processing: str = "standard"
    unix_s: float = NOON
    flavor: str = ""  # of genai-prices' own reader of usage; "" where it has none for this


def chat(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    details = {
        name: more.pop(name)
        for name in ("prompt_tokens_details", "completion_tokens_details")
        if name in more
    }
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **details,
        **more,
    }


def responses(given: int, output: int, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + output,
    }


OPENAI = [
    # gpt-4o: input 2,500, cached 1,250, output 10,000.
    # 1,200 x 2,500 = 3,000,000; 300 x 10,000 = 3,000,000
    Golden("openai", "gpt-4o", chat(1_200, 300), 6_000_000, flavor="chat"),
    # The same with details that are zero or null.
    Golden(
        "openai",
        "gpt-4o",
        chat(
            1_200,
            300,
            prompt_tokens_details={"cached_tokens": 0, "audio_tokens": 0},
            completion_tokens_details={
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        ),
        6_000_000,
        flavor="chat",
    ),
    Golden("openai", "gpt-4o", chat(1_200, 300, prompt_tokens_details=None), 6_000_000),
    # 2,048 of 2,500 cached: 452 x 2,500 = 1,130,000; 2,048 x 1,250 = 2,560,000; 100 x 10,000 = 1,000,000
    Golden(
        "openai",
        "gpt-4o",
        chat(2_500, 100, prompt_tokens_details={"cached_tokens": 2_048}),
        4_690_000,
        flavor="chat",
    ),
    # All of the prompt cached: 1,024 x 1,250 = 1,280,000; 1 x 10,000
    Golden(
        "openai",
        "gpt-4o",
        chat(1_024, 1, prompt_tokens_details={"cached_tokens": 1_024}),
        1_290_000,
        flavor="chat",
    ),
    # A prediction: what was rejected is part of the 700 and is paid: 500 x 2,500 = 1,250,000; 700 x 10,000
    Golden(
        "openai",
        "gpt-4o",
        chat(
            500,
            700,
            completion_tokens_details={
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 400,
                "rejected_prediction_tokens": 120,
            },
        ),
        8_250_000,
        flavor="chat",
    ),
    # Nothing generated: 10 x 2,500
    Golden("openai", "gpt-4o", chat(10, 0), 25_000, flavor="chat"),
    # A dated name: the same price. 7 x 2,500 = 17,500; 5 x 10,000 = 50,000
    Golden("openai", "gpt-4o-2024-08-06", chat(7, 5), 67_500, flavor="chat"),
    # gpt-4o-mini: input 150, cached 75, output 600. 1 x 150 + 1 x 600
    Golden("openai", "gpt-4o-mini", chat(1, 1), 750, flavor="chat"),
    # 128,000 tokens: 127,999 x 150 = 19,199,850; 16,384 x 600 = 9,830,400
    Golden("openai", "gpt-4o-mini", chat(127_999, 16_384), 29_030_250, flavor="chat"),
    # gpt-4o-mini, priority: input 250, output 1,000. 400 x 250 = 100,000; 100 x 1,000 = 100,000
    Golden("openai", "gpt-4o-mini", chat(400, 100), 200_000, "priority"),
    # gpt-4o-mini, batch: input 75, output 300. 400 x 75 = 30,000; 100 x 300 = 30,000
    Golden("openai", "gpt-4o-mini", chat(400, 100), 60_000, "batch"),
    # gpt-5: input 1,250, cached 125, output 10,000 with reasoning.
    # 900 x 1,250 = 1,125,000; 2,000 x 10,000 = 20,000,000 (1,472 of them reasoning)
    Golden(
        "openai",
        "gpt-5",
        chat(900, 2_000, completion_tokens_details={"reasoning_tokens": 1_472}),
        21_125_000,
        flavor="chat",
    ),
    # All reasoning: 900 x 1,250 = 1,125,000; 64 x 10,000 = 640,000
    Golden(
        "openai",
        "gpt-5",
        chat(900, 64, completion_tokens_details={"reasoning_tokens": 64}),
        1_765_000,
        flavor="chat",
    ),
    # gpt-5 responses: 1,000 - 768 = 232 x 1,250 = 290,000; 768 x 125 = 96,000; 500 x 10,000 = 5,000,000
    Golden("openai", "gpt-5", responses(1_000, 500, 768, 320), 5_386_000, flavor="responses"),
    # gpt-5, flex: input 625, cached 62.5, output 5,000.
    # 100 x 625 = 62,500; 1,025 x 62.5 = 64,062.5, half up 64,063; 10 x 5,000 = 50,000
    Golden("openai", "gpt-5", responses(1_125, 10, 1_025), 176_563, "flex"),
    # gpt-5, batch: input 625, output 5,000. 1,001 x 625 = 625,625; 3 x 5,000 = 15,000
    Golden("openai", "gpt-5", responses(1_001, 3), 640_625, "batch"),
    # gpt-5, priority: input 2,500, cached 250, output 20,000. 50 x 2,500 + 50 x 250 + 10 x 20,000
    Golden("openai", "gpt-5", responses(100, 10, 50), 337_500, "priority"),
    # o3 cost input 10,000 and output 40,000 until 2025-06-09: 100 x 10,000 + 50 x 40,000
    Golden("openai", "o3", responses(100, 50, 0, 30), 3_000_000, unix_s=1_749_513_599.0, flavor="responses"),
    # ... and from 2025-06-10 on input 2,000, output 8,000: 100 x 2,000 + 50 x 8,000
    Golden("openai", "o3", responses(100, 50, 0, 30), 600_000, unix_s=1_749_513_600.0, flavor="responses"),
    # An embedding has no completion. text-embedding-3-small: 20 a token. 8,191 x 20
    Golden(
        "openai",
        "text-embedding-3-small",
        {"prompt_tokens": 8_191, "total_tokens": 8_191},
        163_820,
        flavor="embeddings",
    ),
]


def claude(given: int, output: int, **more: Any) -> dict[str, Any]:
    return {"input_tokens": given, "output_tokens": output, **more}


ANTHROPIC = [
    # claude-haiku-4-5: input 1,000, written 1,250, for an hour 2,000, read 100, output 5,000.
    # 100 x 1,000 + 50 x 5,000
    Golden("anthropic", "claude-haiku-4-5", claude(100, 50), 350_000, flavor="default"),
    # Zeros and words.
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(
            100,
            50,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=0,
            cache_creation={"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            service_tier="standard",
            server_tool_use=None,
            inference_geo="not_available",
        ),
        350_000,
        flavor="default",
    ),
    # The input does not include what was read: 12 x 1,000 = 12,000; 2,000 x 100 = 200,000; 30 x 5,000
    # = 150,000
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(12, 30, cache_read_input_tokens=2_000),
        362_000,
        flavor="default",
    ),
    # ... nor what was written: 12 x 1,000 = 12,000; 2,000 x 1,250 = 2,500,000; 30 x 5,000 = 150,000
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(12, 30, cache_creation_input_tokens=2_000),
        2_662_000,
        flavor="default",
    ),
    # For an hour: 12 x 1,000 = 12,000; 2,000 x 2,000 = 4,000,000; 30 x 5,000 = 150,000
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(
            12,
            30,
            cache_creation_input_tokens=2_000,
            cache_creation={"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 2_000},
        ),
        4_162_000,
        flavor="default",
    ),
    # Both, and read: 5 x 1,000 = 5,000; 400 x 1,250 = 500,000; 600 x 2,000 = 1,200,000; 3,000 x 100 =
    # 300,000;
    # 10 x 5,000 = 50,000
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(
            5,
            10,
            cache_creation_input_tokens=1_000,
            cache_read_input_tokens=3_000,
            cache_creation={"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
        ),
        2_055_000,
        flavor="default",
    ),
    # Three searches at 10 dollars per thousand are 30,000,000: 700 x 1,000 + 90 x 5,000 = 1,150,000
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(700, 90, server_tool_use={"web_search_requests": 3, "web_fetch_requests": 0}),
        31_150_000,
        flavor="default",
    ),
    # Fetching a page costs nothing besides its tokens.
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(700, 90, server_tool_use={"web_search_requests": 0, "web_fetch_requests": 7}),
        1_150_000,
        flavor="default",
    ),
    # Batch, half of it all: input 500, written 625, read 50, output 2,500.
    # 100 x 500 = 50,000; 200 x 625 = 125,000; 300 x 50 = 15,000; 40 x 2,500 = 100,000
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(100, 40, cache_creation_input_tokens=200, cache_read_input_tokens=300, service_tier="batch"),
        290_000,
        "batch",
    ),
    # The usage says batch where the caller does not.
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(100, 40, cache_read_input_tokens=0, service_tier="batch"),
        150_000,
    ),
    # Thinking is part of the output: 10 x 1,000 + 1,000 x 5,000
    Golden(
        "anthropic",
        "claude-haiku-4-5",
        claude(10, 1_000, cache_read_input_tokens=0, output_tokens_details={"thinking_tokens": 900}),
        5_010_000,
        flavor="default",
    ),
    # claude-sonnet-4-5: input 3,000, written 3,750, hour 6,000, read 300, output 15,000 up to 200,000
    # of input.
    # 200,000 x 3,000 = 600,000,000; 100 x 15,000 = 1,500,000
    Golden("anthropic", "claude-sonnet-4-5", claude(200_000, 100), 601_500_000, flavor="default"),
    # Beyond them all tokens cost input 6,000, written 7,500, read 600, output 22,500.
    # 200,001 x 6,000 = 1,200,006,000; 100 x 22,500 = 2,250,000
    Golden("anthropic", "claude-sonnet-4-5", claude(200_001, 100), 1_202_256_000, flavor="default"),
    # What is read counts to the limit: 1 x 6,000; 200,000 x 600 = 120,000,000; 2 x 22,500 = 45,000
    Golden(
        "anthropic",
        "claude-sonnet-4-5",
        claude(1, 2, cache_read_input_tokens=200_000),
        120_051_000,
        flavor="default",
    ),
    # 1,500 x 3,000 = 4,500,000; 800 x 15,000 = 12,000,000
    Golden("anthropic", "claude-sonnet-4-5-20250929", claude(1_500, 800), 16_500_000, flavor="default"),
    # Written at the limit: 100,000 x 3,000 = 300,000,000; 100,000 x 3,750 = 375,000,000; 1 x 15,000
    Golden(
        "anthropic",
        "claude-sonnet-4-5",
        claude(100_000, 1, cache_creation_input_tokens=100_000),
        675_015_000,
        flavor="default",
    ),
    # Batch beyond the limit: input 3,000, output 11,250. 300,000 x 3,000 = 900,000,000; 10 x 11,250 = 112,500
    Golden("anthropic", "claude-sonnet-4-5", claude(300_000, 10), 900_112_500, "batch"),
    # claude-opus-4-5: input 5,000, written 6,250, hour 10,000, read 500, output 25,000. No tiers.
    # 300,000 x 5,000 = 1,500,000,000; 1 x 25,000
    Golden("anthropic", "claude-opus-4-5", claude(300_000, 1), 1_500_025_000, flavor="default"),
    # 3 x 5,000 = 15,000; 18,500 x 500 = 9,250,000; 1,300 x 6,250 = 8,125,000; 2,048 x 25,000 = 51,200,000
    Golden(
        "anthropic",
        "claude-opus-4-5",
        claude(3, 2_048, cache_creation_input_tokens=1_300, cache_read_input_tokens=18_500),
        68_590_000,
        flavor="default",
    ),
    # An answer of nothing: 8 x 5,000
    Golden("anthropic", "claude-opus-4-5", claude(8, 0), 40_000, flavor="default"),
    # claude-opus-5, fast: input 10,000, output 50,000. 10 x 10,000 + 4 x 50,000
    Golden("anthropic", "claude-opus-5", claude(10, 4), 300_000, "fast"),
]


def gemini(
    prompt: int, answer: int, *, thoughts: int = 0, cached: int = 0, tools: int = 0, **more: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": answer,
        "totalTokenCount": prompt + answer + thoughts + tools,
    }
    named = {
        "thoughtsTokenCount": thoughts,
        "cachedContentTokenCount": cached,
        "toolUsePromptTokenCount": tools,
    }
    return found | {name: count for name, count in named.items() if count} | more


def parts(**counts: int) -> list[dict[str, Any]]:
    return [{"modality": kind.upper(), "tokenCount": count} for kind, count in counts.items()]


GOOGLE = [
    # gemini-2.5-flash: input 300, audio 1,000, cached 30, cached audio 100, output 2,500 with thoughts.
    # 100 x 300 = 30,000; 40 x 2,500 = 100,000
    Golden("google", "gemini-2.5-flash", gemini(100, 40), 130_000, flavor="default"),
    Golden(
        "google",
        "gemini-2.5-flash",
        gemini(100, 40, promptTokensDetails=parts(text=100)),
        130_000,
        flavor="default",
    ),
    # Thoughts are not in the candidates: 100 x 300 = 30,000; (40 + 500) x 2,500 = 1,350,000
    Golden("google", "gemini-2.5-flash", gemini(100, 40, thoughts=500), 1_380_000, flavor="default"),
    # Only thoughts, and no field for candidates: 50 x 300 = 15,000; 200 x 2,500 = 500,000
    Golden(
        "google",
        "gemini-2.5-flash",
        {"promptTokenCount": 50, "thoughtsTokenCount": 200, "totalTokenCount": 250},
        515_000,
        flavor="default",
    ),
    # A blocked prompt: 75 x 300
    Golden(
        "google",
        "gemini-2.5-flash",
        {"promptTokenCount": 75, "totalTokenCount": 75},
        22_500,
        flavor="default",
    ),
    # The prompt includes what was cached: 1,000 x 300 = 300,000; 4,000 x 30 = 120,000; 10 x 2,500 = 25,000
    Golden(
        "google",
        "gemini-2.5-flash",
        gemini(
            5_000,
            10,
            cached=4_000,
            cacheTokensDetails=parts(text=4_000),
            promptTokensDetails=parts(text=5_000),
        ),
        445_000,
        flavor="default",
    ),
    # Audio: 20 x 300 = 6,000; 320 x 1,000 = 320,000; 10 x 2,500 = 25,000
    Golden(
        "google",
        "gemini-2.5-flash",
        gemini(340, 10, promptTokensDetails=parts(text=20, audio=320)),
        351_000,
        flavor="default",
    ),
    # Cached audio: text 20 x 300 = 6,000; audio (320 - 300) x 1,000 = 20,000; cached audio 300 x 100
    # = 30,000;
    # 10 x 2,500 = 25,000
    Golden(
        "google",
        "gemini-2.5-flash",
        gemini(
            340,
            10,
            cached=300,
            promptTokensDetails=parts(text=20, audio=320),
            cacheTokensDetails=parts(audio=300),
        ),
        81_000,
        flavor="default",
    ),
    # An image, a video and a document cost as text: (258 + 1,000 + 516 + 6) x 300 = 534,000; 1 x 2,500
    Golden(
        "google",
        "gemini-2.5-flash",
        gemini(1_780, 1, promptTokensDetails=parts(image=258, video=1_000, document=516, text=6)),
        536_500,
        flavor="default",
    ),
    # Prompts of tools come on top: (100 + 900) x 300 = 300,000; 10 x 2,500 = 25,000
    Golden(
        "google",
        "gemini-2.5-flash",
        gemini(100, 10, tools=900, toolUsePromptTokensDetails=parts(text=900)),
        325_000,
        flavor="default",
    ),
    # Batch: input 150, output 1,250. 100 x 150 = 15,000; 40 x 1,250 = 50,000
    Golden("google", "gemini-2.5-flash", gemini(100, 40), 65_000, "batch"),
    # Vertex names the traffic.
    Golden("google", "gemini-2.5-flash", gemini(100, 40, trafficType="ON_DEMAND"), 130_000, flavor="default"),
    # gemini-2.5-pro: input 1,250, cached 125, output 10,000 up to 200,000 of input.
    # 1,000 x 1,250 = 1,250,000; (100 + 300) x 10,000 = 4,000,000
    Golden("google", "gemini-2.5-pro", gemini(1_000, 100, thoughts=300), 5_250_000, flavor="default"),
    # 200,000 x 1,250 = 250,000,000; 1 x 10,000
    Golden("google", "gemini-2.5-pro", gemini(200_000, 1), 250_010_000, flavor="default"),
    # Beyond: input 2,500, cached 250, output 15,000. 200,001 x 2,500 = 500,002,500; 1 x 15,000
    Golden("google", "gemini-2.5-pro", gemini(200_001, 1), 500_017_500, flavor="default"),
    # Beyond, cached: 50,001 x 2,500 = 125,002,500; 150,000 x 250 = 37,500,000; 10 x 15,000 = 150,000
    Golden("google", "gemini-2.5-pro", gemini(200_001, 10, cached=150_000), 162_652_500, flavor="default"),
    # Audio has no price of its own: 340 x 1,250 = 425,000; 10 x 10,000 = 100,000
    Golden(
        "google",
        "gemini-2.5-pro",
        gemini(340, 10, promptTokensDetails=parts(text=20, audio=320)),
        525_000,
        flavor="default",
    ),
    # Batch beyond: input 1,250, output 7,500. 300,000 x 1,250 = 375,000,000; 100 x 7,500 = 750,000
    Golden("google", "gemini-2.5-pro", gemini(300_000, 100), 375_750_000, "batch"),
    # gemini-2.5-flash-image: input 300, text 2,500, images 30,000. 30 x 300 = 9,000; 1,290 x 30,000 =
    # 38,700,000;
    # 20 x 2,500 = 50,000
    Golden(
        "google",
        "gemini-2.5-flash-image",
        gemini(30, 1_310, candidatesTokensDetails=parts(image=1_290, text=20)),
        38_759_000,
        flavor="default",
    ),
    # gemini-2.5-flash-tts speaks: input 500, output 10,000, all of it audio. 12 x 500 = 6,000; 250 x 10,000
    Golden(
        "google",
        "gemini-2.5-flash-tts",
        gemini(12, 250, candidatesTokensDetails=parts(audio=250)),
        2_506_000,
        flavor="default",
    ),
]

OTHERS = [
    # mistral-small: 100 and 300 until 2026-03-15: 10 x 100 + 10 x 300
    Golden("mistral", "mistral-small-latest", chat(10, 10), 4_000, unix_s=1_773_532_799.0, flavor="default"),
    # ... then 150, cached 15, 600: 10 x 150 + 10 x 600
    Golden("mistral", "mistral-small-latest", chat(10, 10), 7_500, flavor="default"),
    # 1,000 - 896 = 104 x 150 = 15,600; 896 x 15 = 13,440; 10 x 600 = 6,000
    Golden(
        "mistral",
        "mistral-small-latest",
        chat(1_000, 10, prompt_tokens_details={"cached_tokens": 896}, prompt_audio_seconds={}),
        35_040,
        flavor="default",
    ),
    # The other name of the same count.
    Golden("mistral", "mistral-small-latest", chat(1_000, 10, num_cached_tokens=896), 35_040),
    # Batch: 75 and 300. 100 x 75 + 100 x 300
    Golden("mistral", "mistral-small-latest", chat(100, 100), 37_500, "batch"),
    # deepseek-chat by day: hit 70, miss 270, output 1,100. 64 x 70 = 4,480; 36 x 270 = 9,720; 10 x
    # 1,100 = 11,000
    Golden(
        "deepseek",
        "deepseek-chat",
        chat(
            100,
            10,
            prompt_cache_hit_tokens=64,
            prompt_cache_miss_tokens=36,
            prompt_tokens_details={"cached_tokens": 64},
        ),
        25_200,
        flavor="chat",
    ),
    Golden(
        "deepseek",
        "deepseek-chat",
        chat(100, 10, prompt_cache_hit_tokens=64, prompt_cache_miss_tokens=36),
        25_200,
    ),
    # ... by night (20:00 UTC): hit 35, miss 135, output 550. 64 x 35 = 2,240; 36 x 135 = 4,860; 10 x
    # 550 = 5,500
    Golden(
        "deepseek",
        "deepseek-chat",
        chat(100, 10, prompt_cache_hit_tokens=64, prompt_cache_miss_tokens=36),
        12_600,
        unix_s=NOON + 8 * 3600,
    ),
    # deepseek-reasoner by day: miss 550, output 2,190. 100 x 550 = 55,000; 50 x 2,190 = 109,500
    Golden(
        "deepseek",
        "deepseek-reasoner",
        chat(100, 50, completion_tokens_details={"reasoning_tokens": 30}),
        164_500,
        flavor="chat",
    ),
    # groq: 590 and 790, and its times: 1,000 x 590 = 590,000; 200 x 790 = 158,000
    Golden(
        "groq",
        "llama-3.3-70b-versatile",
        chat(1_000, 200, queue_time=0.018, prompt_time=0.0042, completion_time=1, total_time=1.0222),
        748_000,
        flavor="default",
    ),
    # groq gpt-oss-120b: 150, cached 75, 600. 1,000 x 150 = 150,000; 500 x 75 = 37,500; 100 x 600 = 60,000
    Golden(
        "groq",
        "openai/gpt-oss-120b",
        chat(
            1_500,
            100,
            prompt_tokens_details={"cached_tokens": 500},
            completion_tokens_details={"reasoning_tokens": 40},
        ),
        247_500,
        flavor="default",
    ),
    # xai grok-3-mini: 300, cached 75, 500. Its reasoning is apart from the completion, as the total says:
    # 20 x 300 = 6,000; 12 x 75 = 900; (9 + 291) x 500 = 150,000
    Golden(
        "xai",
        "grok-3-mini",
        {
            "prompt_tokens": 32,
            "completion_tokens": 9,
            "total_tokens": 332,
            "prompt_tokens_details": {
                "text_tokens": 32,
                "audio_tokens": 0,
                "image_tokens": 0,
                "cached_tokens": 12,
            },
            "completion_tokens_details": {"reasoning_tokens": 291, "audio_tokens": 0},
            "num_sources_used": 0,
        },
        156_900,
    ),
    # grok-4: 3,000, 15,000. 10 x 3,000 + 1 x 15,000
    Golden("xai", "grok-4", chat(10, 1), 45_000),
    # openrouter, by the list: 2,500 and 10,000. The cost that it states itself is not part of this.
    Golden("openrouter", "openai/gpt-4o", chat(10, 2, cost=0.00004275, is_byok=False), 45_000, flavor="chat"),
]

GOLDEN = [*OPENAI, *ANTHROPIC, *GOOGLE, *OTHERS]
