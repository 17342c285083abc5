"""Tables of what PyTorch's functions, methods and attributes return, as far as rules care.

Sources: https://docs.pytorch.org/docs/stable/tensors.html, .../torch.html and .../nn.functional.html. Names that
are not listed return tensors (``returns_tensor``), because nearly all do.
"""

from __future__ import annotations

import re

NUMBER_METHODS = frozenset(
    """item dim ndimension numel nelement element_size storage_offset data_ptr get_device is_contiguous
    is_floating_point is_complex is_set_to is_pinned is_shared is_inference is_signed is_coalesced is_conj
    is_neg sparse_dim dense_dim equal allclose is_same_size has_names""".split()
)
"""Methods of a tensor that return a Python number. ``item``, ``equal`` and ``allclose`` wait for the device."""
NONE_METHODS = frozenset(["backward", "register_hook", "retain_grad", "share_memory"])
LIST_METHODS = frozenset("split chunk unbind tensor_split hsplit vsplit dsplit split_with_sizes".split())
PAIR_METHODS = frozenset("sort topk kthvalue mode cummax cummin median nanmedian max min aminmax frexp".split())
"""Methods (and functions of the same name) that return two tensors; ``max``, ``min``, ``median`` only with ``dim``."""
ONLY_WITH_DIM = frozenset(["max", "min", "median", "nanmedian"])
LIST_FUNCTIONS = frozenset(
    """torch.svd torch.qr torch.slogdet torch.lu torch.linalg.svd torch.linalg.qr torch.linalg.eig torch.linalg.eigh
    torch.linalg.slogdet torch.linalg.lstsq torch.var_mean torch.std_mean torch.geqrf torch.linalg.lu
    torch.linalg.lu_factor torch.triangular_solve torch.lstsq torch.symeig torch.eig torch.autograd.grad
    torch.nn.functional.multi_head_attention_forward torch.split torch.chunk torch.unbind torch.tensor_split
    torch.meshgrid torch.broadcast_tensors torch.hsplit torch.vsplit torch.dsplit torch.align_tensors""".split()
)
"""Functions that return several tensors."""
NUMBER_PROPERTIES = frozenset(
    """ndim is_cuda is_cpu is_mps is_xpu is_meta requires_grad is_leaf is_sparse is_quantized is_nested itemsize
    nbytes output_nr retains_grad is_sparse_csr""".split()
)
TENSOR_PROPERTIES = frozenset("grad data T mT H mH real imag".split())
OTHER_PROPERTIES = frozenset(["grad_fn", "layout", "names", "name", "_version", "_backward_hooks", "_base"])
TORCH_ONLY = frozenset(
    """unsqueeze unsqueeze_ permute contiguous masked_fill masked_fill_ masked_select masked_scatter softmax
    log_softmax sigmoid tanh relu relu_ gelu detach detach_ backward requires_grad_ expand expand_as type_as
    view_as reshape_as scatter scatter_ scatter_add scatter_add_ gather index_select index_add index_add_
    index_copy_ index_fill_ bmm matmul_ baddbmm addmm chunk unbind movedim narrow is_cuda grad_fn
    is_contiguous size numel new_zeros new_ones new_full new_tensor new_empty new_zeros fill_ zero_ copy_ mul_
    add_ sub_ div_ clamp clamp_ clamp_min clamp_max normal_ uniform_ triu tril tril_ triu_ logsumexp lt_
    unfold topk is_floating_point requires_grad item_ pow_ sqrt_ rsqrt exp_ log1p_ logical_not bernoulli_
    repeat_interleave scatter_reduce scatter_reduce_ squeeze_ transpose_ unflatten half bfloat16 cuda
    ndimension new addcmul addcdiv index_put_ index_put nan_to_num_ expm1 erf amax amin argmax_ softmax_
    is_sparse storage data_ptr pin_memory element_size device to_dense coalesce mT type retain_grad
    register_hook""".split()
)
"""Attributes that tell that something is a tensor: neither NumPy's arrays nor Python's containers have them."""
NOT_TELLING = frozenset(
    """cuda half type new scatter gather size copy_ device storage expand register_hook softmax normal_ requires_grad
    sigmoid tanh relu gelu narrow fill_""".split()
)
"""Names of ``TORCH_ONLY`` that models, other libraries or users' classes have as methods too."""
ARRAY_LIKE = frozenset(
    """shape ndim sum mean std var min max argmax argmin any all reshape transpose view flatten squeeze cumsum clip
    dtype T prod round abs dim float double int long bool sqrt exp log pow eq ne gt lt ge le mul div add sub
    matmul cos sin nonzero t repeat flip roll norm sign log2 log10 to cpu item tolist numpy clone split sort
    argsort nelement unique tile norm mm square ceil floor dot data grad""".split()
)
"""Attributes that tensors share with arrays or other things."""
LOSSES = frozenset(
    """cross_entropy mse_loss l1_loss nll_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss
    huber_loss kl_div ctc_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss
    triplet_margin_loss multi_margin_loss soft_margin_loss gaussian_nll_loss poisson_nll_loss
    multilabel_margin_loss""".split()
)
FACTORIES = frozenset(
    """arange zeros ones full empty eye linspace logspace rand randn randint randperm range tril_indices triu_indices
    hann_window hamming_window blackman_window bartlett_window kaiser_window complex_ empty_strided normal_""".split()
)
"""Functions of torch that make a tensor on the default device unless ``device=`` is given."""
FROM_DATA = frozenset(["tensor", "as_tensor", "from_numpy", "asarray", "frombuffer"])
"""Functions of torch that make a tensor from Python's or NumPy's data."""
ON_CPU = frozenset(["torch.from_file", "torch.frombuffer", "torch.from_numpy"])
"""Functions whose tensors share memory with a file or with Python's objects, so that they lie on the CPU."""
LIKE = frozenset(["zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"])
BOOL_RESULTS = frozenset(
    """isnan isinf isfinite isposinf isneginf isreal isclose isin eq ne lt le gt ge logical_and logical_or
    logical_not logical_xor any all signbit greater less greater_equal less_equal not_equal bool""".split()
)
INT_RESULTS = frozenset(
    """argmax argmin argsort long int nonzero bincount searchsorted bucketize one_hot argwhere""".split()
)
CASTS = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "bool": "bool",
    "short": "int16",
    "byte": "uint8",
    "char": "int8",
}
REDUCTIONS = frozenset(
    """sum mean max min prod std var norm any all median amax amin logsumexp argmax argmin""".split()
)
CONTRACTING = REDUCTIONS | frozenset(
    """matmul bmm mm einsum baddbmm addmm linear scaled_dot_product_attention dot mv size topk""".split()
)
"""Functions whose result is not as large as their operands."""
NOT_TENSORS = frozenset(
    """device dtype Size Generator manual_seed seed initial_seed get_default_dtype get_default_device compile load
    save no_grad enable_grad inference_mode set_grad_enabled is_grad_enabled finfo iinfo typename
    get_num_threads set_num_threads get_rng_state set_rng_state is_inference_mode_enabled autocast
    promote_types can_cast result_type broadcast_shapes vmap cond while_loop equal allclose numel
    get_autocast_dtype get_autocast_gpu_dtype use_deterministic_algorithms set_printoptions memory_format
    layout Stream Event Tag _assert sym_int sym_max sym_min sym_not sym_float sym_ite
    get_float32_matmul_precision Tensor_ is_autocast_enabled""".split()
)
NUMBER_FUNCTIONS = frozenset(
    """torch.numel torch.equal torch.allclose torch.is_tensor torch.is_floating_point torch.is_complex
    torch.is_grad_enabled torch.is_storage torch.is_inference_mode_enabled torch.get_num_threads
    torch.cuda.is_available torch.cuda.device_count torch.cuda.current_device torch.distributed.get_rank
    torch.distributed.get_world_size torch.is_autocast_enabled torch.jit.is_scripting torch.jit.is_tracing
    torch.compiler.is_compiling torch.onnx.is_in_onnx_export torch.cuda.memory_allocated
    torch.distributed.is_initialized torch.distributed.is_available torch.backends.mps.is_available
    torch.cuda.max_memory_allocated torch.initial_seed torch.seed""".split()
)
SAME_MODULE = frozenset(
    """to cuda cpu eval train half float double bfloat16 requires_grad_ share_memory to_empty type xpu compile_
    apply""".split()
)
"""Methods of a module that return the module itself."""
TUPLE_MODULES = frozenset(["LSTM", "GRU", "RNN", "LSTMCell", "MultiheadAttention"])
CONTAINERS = frozenset(
    ["torch.nn.ModuleList", "torch.nn.ModuleDict", "torch.nn.ParameterList", "torch.nn.ParameterDict"]
)
DTYPES = frozenset(
    """float32 float64 float16 bfloat16 float double half int8 int16 int32 int64 int long short uint8 bool complex64
    complex128 cfloat cdouble float8_e4m3fn float8_e5m2""".split()
)
TENSOR_CLASSES = {
    "torch.Tensor": None,
    "torch.FloatTensor": "float32",
    "torch.LongTensor": "int64",
    "torch.BoolTensor": "bool",
    "torch.DoubleTensor": "float64",
    "torch.HalfTensor": "float16",
    "torch.IntTensor": "int32",
    "torch.ByteTensor": "uint8",
    "torch.nn.Parameter": None,
    "torch.cuda.FloatTensor": "float32",
    "torch.cuda.LongTensor": "int64",
    "torch.nn.Buffer": None,
    "torch.autograd.Variable": None,
}
NUMPY_NUMBERS = frozenset("int32 int64 float32 float64 int float bool_ float16 uint8 int8 bool".split())
MODULE_FACTORIES = frozenset(
    """torch.hub.load torch.jit.load torch.jit.script torch.jit.trace torch.compile torch.fx.symbolic_trace""".split()
)
MODEL_LIBRARIES = ("torchvision.models.", "timm.create_model", "torch.hub.load")
"""Functions that make a model, by the beginning of their names. Nearly all of these models drop out or normalise."""
GUARDS = re.compile(r"(^|\.)_?is_(\w+_)?(scripting|tracing|compiling|exporting|exportable|onnx_export|fx_proxy)$")
"""Names of tests that are true only while a model is exported or scripted: the guarded code does not run in eager
mode."""
_NOT_COMPUTING = ("is_", "are_", "set_", "get_", "_")


def returns_tensor(name: str) -> bool:
    """Whether the function of torch called ``name`` (``torch.relu``) returns one tensor."""
    package, _, last = name.rpartition(".")
    if package == "torch":
        return last[:1].islower() and last not in NOT_TENSORS and not last.startswith(_NOT_COMPUTING)
    if package in ("torch.nn.functional", "torch.special", "torch.fft", "torch._C._nn", "torch.linalg"):
        return not last.startswith("_") and not last.endswith("_with_indices")
    if package in ("torch.ops.aten", "torchvision.ops", "torchvision.ops.boxes", "torchvision.transforms.functional"):
        return last[:1].islower() and not last.startswith(_NOT_COMPUTING)
    return False


CONTAINER_ATTRIBUTES = frozenset(["config", "named_modules", "parameters", "state_dict"])
