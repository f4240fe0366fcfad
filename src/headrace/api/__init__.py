"""The HTTP surface: one file per endpoint family, OpenAI's conventions."""
