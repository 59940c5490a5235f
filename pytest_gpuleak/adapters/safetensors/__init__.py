"""Files that `safetensors.safe_open` keeps mapped."""
