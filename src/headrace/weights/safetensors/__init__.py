"""safetensors: reading and writing files."""
