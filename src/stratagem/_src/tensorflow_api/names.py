"""The modules of ``tensorflow_api`` that define the names of ``tf`` itself; each loads on first use."""

__all__ = ["TOP_NAMES"]

_NAMES = {
    "array_creation": (
        "constant constant_initializer convert_to_tensor eye fill get_static_value "
        "identity identity_n is_tensor linspace make_ndarray meshgrid one_hot ones "
        "ones_initializer ones_like range sequence_mask zeros zeros_initializer "
        "zeros_like"
    ),
    "array_indexing": (
        "boolean_mask dynamic_partition dynamic_stitch gather gather_nd scatter_nd "
        "tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min "
        "tensor_scatter_nd_sub tensor_scatter_nd_update unravel_index where"
    ),
    "array_padding": "batch_to_space pad repeat reverse reverse_sequence roll space_to_batch tile",
    "array_shapes": (
        "bitcast broadcast_dynamic_shape broadcast_static_shape broadcast_to ensure_shape "
        "expand_dims rank reshape shape shape_n size squeeze transpose"
    ),
    "array_slicing": "concat parallel_stack slice split stack strided_slice unstack",
    "array_sorting": (
        "argsort histogram_fixed_width histogram_fixed_width_bins searchsorted sort "
        "unique unique_with_counts"
    ),
    "clipping": "clip_by_global_norm clip_by_norm clip_by_value",
    "control_flow": (
        "case control_dependencies executing_eagerly foldl foldr group inside_function "
        "map_fn no_op scan stop_gradient switch_case vectorized_map while_loop"
    ),
    "custom_gradients": "custom_gradient grad_pass_through recompute_grad",
    "debugging": "Assert assert_equal assert_greater assert_less assert_rank",
    "dtypes": "DType as_dtype cast complex double half newaxis saturate_cast",
    "gradient_tape": "GradientTape",
    "host_calls": "device get_logger init_scope numpy_function py_function timestamp",
    "host_tensor": "Tensor",
    "linalg": "einsum matmul norm tensordot",
    "linalg_decompositions": "eig eigvals",
    "math_binary": (
        "add add_n atan2 divide equal greater greater_equal less less_equal logical_and "
        "logical_or maximum minimum multiply not_equal pow realdiv scalar_mul subtract "
        "truediv truncatediv truncatemod"
    ),
    "math_pointwise": (
        "abs acos acosh asin asinh atan atanh cos cosh exp floor logical_not negative "
        "round sigmoid sign sin sinh sqrt square tan tanh"
    ),
    "math_reductions": (
        "argmax argmin cumsum reduce_all reduce_any reduce_logsumexp reduce_max "
        "reduce_mean reduce_min reduce_prod reduce_sum"
    ),
    "module": "Module name_scope",
    "printing": "print",
    "random_stateful": "random_normal_initializer random_uniform_initializer",
    "strings": "as_string",
    "tape_gradients": "UnconnectedGradients",
    "tensor_array": "TensorArray",
}
TOP_NAMES: dict[str, str] = {
    name: f"stratagem._src.tensorflow_api.{file}"
    for file, names in _NAMES.items()
    for name in names.split()
}
"""The module that defines each name."""
