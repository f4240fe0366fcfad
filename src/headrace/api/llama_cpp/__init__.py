"""llama.cpp's own API, and its server's names without a version for endpoints of OpenAI's."""
