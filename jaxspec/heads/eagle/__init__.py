"""EAGLE (2401.15077), EAGLE-3 (2503.01840), and multi-token prediction modules (DeepSeek-V3, 2412.19437)."""
