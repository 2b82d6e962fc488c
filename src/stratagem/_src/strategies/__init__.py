"""The strategies: where replicas run and where variables live."""
