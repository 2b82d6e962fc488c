"""The current strategy of a thread, and the protocols through which lower packages use it."""
