import jax._src.export._export as jax_export

from stratagem._src.jax_compat.stable_custom_calls import stable_custom_calls


def test_jax_says_which_custom_calls_are_stable():
    stable = stable_custom_calls()
    assert {"Sharding", "shape_assertion", "lapack_sgesdd_ffi", "Eigh"} < stable
    assert not any("callback" in name for name in stable)


def test_where_jax_does_not_say_only_those_of_every_program_are(monkeypatch):
    monkeypatch.delattr(jax_export, "_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE")
    stable = stable_custom_calls()
    assert "shape_assertion" in stable
    assert "lapack_sgesdd_ffi" not in stable
