"""The protocol between coordinator and worker: messages, definitions and serialization."""
