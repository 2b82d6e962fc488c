"""Errors for public names that do not exist, with the replacement to use."""

from __future__ import annotations

import sys

__all__ = ["missing_method", "missing_name", "tensorflow_method"]


def missing_name(module_name: str, name: str) -> AttributeError:
    """Returns the error for ``name``, which a public module does not have.

    If TensorFlow has the name, the error gives its replacement; otherwise a similar name of this module or
    of TensorFlow.

    Args:
        module_name: The module's name in ``sys.modules``, such as ``"stratagem.data"``.
        name: The missing name.

    >>> print(missing_name("stratagem", "hessians"))
    module 'stratagem' has no attribute 'hessians'. For tf.hessians use jax.hessian(f)(x).
    """
    text = f"module {module_name!r} has no attribute {name!r}"
    if not name.startswith("_"):  # Python, pickle and tools probe for those: fail fast
        text += _translation(module_name, name) or _suggestion(module_name, name)
    # With a name and without an object Python adds no suggestion of its own.
    return AttributeError(text, name=name)


def missing_method(owner: object, name: str) -> AttributeError:
    """Returns the error for an attribute that an object does not have, with its replacement.

    ``__getattr__`` of the object's class should raise it.

    Args:
        owner: The object.
        name: The missing attribute.
    """
    asked = getattr(type(owner), name, None)
    if isinstance(asked, property) and asked.fget is not None:
        try:  # Python calls __getattr__ for a property that raised AttributeError, and drops its message
            asked.fget(owner)
        except AttributeError as error:
            return error
    cls = type(owner).__name__
    text = f"{cls!r} object has no attribute {name!r}"
    if (hint := tensorflow_method(owner, name)) is not None:
        return AttributeError(f"{text}. Use {_sentence(hint)}", name=name)
    if name.startswith("_"):
        return AttributeError(text, name=name)
    return AttributeError(text, name=name, obj=owner)


def tensorflow_method(owner: object, name: str) -> str | None:
    """Returns the replacement of an attribute that only TensorFlow's objects have."""
    if name.startswith("_"):
        return None
    # Imported lazily, as below.
    from stratagem._src.core.tensorflow_names.methods import METHODS

    hints = (METHODS.get(f"{base.__name__}.{name}") for base in type(owner).__mro__)
    return next((hint for hint in hints if hint is not None), None)


def _translation(module_name: str, name: str) -> str:
    # Imported lazily: few programs make this mistake, and the table is long.
    from stratagem._src.core.tensorflow_names import TRANSLATIONS

    full_name = f"{module_name}.{name}".partition(".")[2]
    if full_name in TRANSLATIONS:
        return f". For tf.{full_name} use {_sentence(TRANSLATIONS[full_name])}"
    inside = {key: text for key, text in TRANSLATIONS.items() if key.startswith(f"{full_name}.")}
    return f". For what TensorFlow has in tf.{full_name} use\n{_list(inside)}" if inside else ""


def _list(translations: dict[str, str]) -> str:
    same_names: dict[str, list[str]] = {}
    lines = []
    for key, text in translations.items():
        name, (module, _, translated) = key.rpartition(".")[2], text.rpartition(".")
        if name == translated:
            same_names.setdefault(module, []).append(name)
        else:
            lines.append(f"    tf.{key}: {text}")
    same = [f"    the same names of {module}: {', '.join(n)}" for module, n in same_names.items()]
    return "\n".join([*same, *lines])


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _suggestion(module_name: str, name: str) -> str:
    import difflib  # as above

    from stratagem._src.core.tensorflow_names import TRANSLATIONS

    known = [n for n in dir(sys.modules.get(module_name)) if not n.startswith("_")]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if close:
        return f". Did you mean {close[0]!r}?"
    full_name = f"{module_name}.{name}".partition(".")[2]
    inside = full_name.rpartition(".")[0]
    translated = [key for key in TRANSLATIONS if key.rpartition(".")[0] == inside]
    close = difflib.get_close_matches(full_name, translated, n=1, cutoff=0.85)
    if not close:
        return ""
    return f". Did you mean tf.{close[0]}? For that use {_sentence(TRANSLATIONS[close[0]])}"
