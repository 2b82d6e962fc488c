"""Which file has which of TensorFlow's names that are in ``tf`` itself, for loading them when used."""

__all__ = ["TOP_NAMES"]

_NAMES = {
    "array_creation": (
        "constant constant_initializer convert_to_tensor eye fill get_static_value "
        "identity identity_n is_tensor linspace make_ndarray meshgrid one_hot ones "
        "ones_initializer ones_like range sequence_mask zeros zeros_initializer "
        "zeros_like"
    ),
    "array_indexing": (
        "argsort boolean_mask dynamic_partition dynamic_stitch gather gather_nd "
        "histogram_fixed_width histogram_fixed_width_bins scatter_nd searchsorted sort "
        "tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min "
        "tensor_scatter_nd_sub tensor_scatter_nd_update unique unique_with_counts "
        "unravel_index where"
    ),
    "array_shapes": (
        "batch_to_space bitcast broadcast_dynamic_shape broadcast_static_shape "
        "broadcast_to concat ensure_shape expand_dims pad parallel_stack rank repeat "
        "reshape reverse reverse_sequence roll shape shape_n size slice space_to_batch "
        "split squeeze stack strided_slice tile transpose unstack"
    ),
    "clipping": ("clip_by_global_norm clip_by_norm clip_by_value"),
    "control_flow": (
        "case control_dependencies executing_eagerly foldl foldr group inside_function "
        "map_fn no_op scan stop_gradient switch_case vectorized_map while_loop"
    ),
    "custom_gradients": ("custom_gradient grad_pass_through recompute_grad"),
    "debugging": ("Assert assert_equal assert_greater assert_less assert_rank"),
    "dtypes": ("DType as_dtype cast complex double half newaxis saturate_cast"),
    "host_calls": ("device get_logger init_scope numpy_function py_function timestamp"),
    "host_tensor": ("Tensor"),
    "linalg": ("eig eigvals einsum matmul norm tensordot"),
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
    "random_stateful": ("random_normal_initializer random_uniform_initializer"),
    "module": ("Module name_scope"),
    "printing": ("print"),
    "strings": ("as_string"),
    "tensor_array": ("TensorArray"),
}
TOP_NAMES: dict[str, str] = {
    name: f"stratagem._src.tensorflow_api.{file}"
    for file, names in _NAMES.items()
    for name in names.split()
}
"""For each name the module that has it."""
