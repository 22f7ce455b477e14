"""Places on disk and in object stores: claimed, filled with bytes under keys, shown when whole."""
