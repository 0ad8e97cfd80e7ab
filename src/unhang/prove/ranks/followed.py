"""Which operations of torch pass a value on, and do nothing else that depends on it: an allow-list."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of the functional collectives, only the waiting comes here.
_HARMLESS = frozenset({"prim", "fsdp", "_c10d_functional", "c10d_functional"})
# Beside the pointwise operations, the reductions and the views.
_FOLLOWED = frozenset(
    """_conj_copy _fused_rms_norm _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data _to_copy
    _unsafe_view add_ addbmm addmm addmv addr alias argmax argmin argsort baddbmm bmm cat clone constant_pad_nd
    copy copy_ cummax cummin cumprod cumsum detach detach_ dot empty_like fill fill_ flip full_like index_add
    index_copy index_fill linear logcumsumexp masked_fill masked_fill_ max min mm mv native_batch_norm
    native_dropout native_group_norm native_layer_norm native_layer_norm_backward new_empty new_empty_strided
    new_full new_ones new_zeros ones_like rand_like randn_like repeat resize_ roll rot90 scalar_tensor
    select_backward select_scatter set_ slice_backward slice_scatter sort split_with_sizes_copy stack std
    std_mean topk trace tril triu var var_mean zero zero_ zeros_like""".split()
)
# They may raise where an integer of another rank is out of range.
_INDEXING = frozenset(
    """_index_put_impl_ _unsafe_index embedding embedding_dense_backward gather index index_add index_add_
    index_copy index_copy_ index_fill index_put index_put_ index_select nll_loss_backward nll_loss_forward
    scatter scatter_ scatter_add scatter_add_ take""".split()
)
_DIVIDING = frozenset({"div", "div_", "floor_divide", "floor_divide_", "fmod", "remainder", "remainder_"})
# Operations that torch composes of others before a mode sees them: those of which each part is seen.
_COMPOSED = frozenset(
    """absolute absolute_ adjoint argsort atleast_1d atleast_2d atleast_3d batch_norm broadcast_tensors
    broadcast_to chunk clip clip_ column_stack concat concatenate conj contiguous conv1d conv2d conv3d
    cosine_similarity cross cross_entropy_loss data diag diff dim divide divide_ dropout dropout_ dstack einsum
    empty expand_as fix flatten flatten_dense_tensors fliplr flipud float_power frobenius_norm get_device
    greater greater_ greater_equal group_norm hstack imag inner instance_norm is_complex is_conj is_contiguous
    is_floating_point is_inference is_leaf is_neg is_nonzero is_signed isclose isfinite isreal item kl_div
    l1_loss layer_norm less less_ less_equal less_equal_ linalg_matmul linalg_norm linalg_vecdot linear
    log_sigmoid log_softmax mH mT matmul meshgrid moveaxis movedim multiply multiply_ nanmean narrow negative
    negative_ nll_loss nll_loss_nd norm_except_dim not_equal nuclear_norm numel numpy_T outer output_nr pad
    pin_memory positive ravel real relu6 requires_grad_ reshape reshape_as resolve_conj resolve_neg result_type
    retain_grad retains_grad rms_norm row_stack scaled_dot_product_attention selu set_data size softmax square
    square_ storage_offset stride subtract subtract_ sum_to_size swapaxes swapdims take_along_dim tensordot tile
    to true_divide true_divide_ type_as unflatten unflatten_dense_tensors unsafe_chunk
    value_selecting_reduction_backward view_as vstack""".split()
)


def is_opaque(name: str) -> bool:
    """Return whether torch composes a function of operations that may read a value where no mode sees it."""
    return name in _composed() and name not in _COMPOSED


@cache
def _composed() -> frozenset[str]:
    import torch

    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    key = "CompositeImplicitAutograd"
    composed = [name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
    return frozenset(name.removeprefix("aten::").partition(".")[0] for name in composed)


def is_followed(func: Any, tainted: Iterable[Any]) -> bool:
    """Return whether an operation passes values of these inputs on, and does nothing else that depends on them."""
    import torch

    if func.namespace != "aten":
        return func.namespace in _HARMLESS
    name = func.__name__.partition(".")[0]
    integers = [one for one in tainted if not (one.is_floating_point() or one.is_complex())]
    if name in _INDEXING or name in _DIVIDING:
        return not integers
    if torch.Tag.nondeterministic_seeded in func.tags and name not in _FOLLOWED:  # its probability may be out of range
        return False
    known = {torch.Tag.pointwise, torch.Tag.reduction, torch.Tag.view_copy}
    return name in _FOLLOWED or bool(known & {*func.tags}) or func.is_view
