"""How weights begin, are adapted and are quantized."""
