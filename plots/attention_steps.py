"""The steps, called from Python on tensors that are already there: libattention_steps.so through ctypes.

    steps = Steps.load()                                   # or Steps.load("build/libattention_steps.so")
    o, lse = steps.forward("step04", q, k, v, causal=True)
    dq, dk, dv = steps.backward("step05", q, k, v, o, lse, d_o, causal=True)
    attention = steps.torch_function("step10")             # for PyTorch: o = attention(q, k, v), o.backward(d_o)

Tensors are NumPy arrays or PyTorch tensors, contiguous: q, o, d_o, dq [batch, heads, seqlen_q, head_dim], k, v, dk, dv
[batch, heads, seqlen_k, head_dim], lse [batch, heads, seqlen_q] in float32. What lies on a GPU runs there, the rest on
the CPU executor. Every call takes the flags of the command line by name: causal, softmax_scale (1/sqrt(head_dim)),
tile (a pair), in float32 product ("tensor-cores"), splits, deterministic. common/c_api/attention_steps.h is the
interface underneath.
Needs NumPy or PyTorch, whichever the tensors come from."""

import ctypes
import pathlib

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
PRODUCTS = {None: 0, "cuda-cores": 1, "tensor-cores": 2}
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


class StepError(Exception):
    """A call that failed. `code` is the exit code of the steps' command line (3: this step cannot serve this device or
    shape)."""

    def __init__(self, code, line):
        super().__init__(line)
        self.code = code


class LibraryMissing(Exception):
    """There is no library to load, or what was found is not one."""


def _fields(words, of=ctypes.c_int32):
    return [(name, of) for name in words.split()]


class _Problem(ctypes.Structure):
    _fields_ = [
        *_fields("device dtype"),
        *_fields("batch heads seqlen_q seqlen_k head_dim", ctypes.c_int64),
        *_fields("causal"),
        *_fields("softmax_scale", ctypes.c_float),
        *_fields("tile_br tile_bc product splits deterministic"),
    ]


class _Tensors(ctypes.Structure):
    _fields_ = _fields("q k v o lse d_o dq dk dv", ctypes.c_void_p)


class Plan(ctypes.Structure):
    """What a call asks for: tile, bytes of scratch beyond the tensors, kernels, FLOPs."""

    _fields_ = [
        *_fields("tile_br tile_bc"),
        *_fields("workspace_bytes", ctypes.c_int64),
        *_fields("kernels"),
        *_fields("useful_flops executed_flops", ctypes.c_int64),
    ]


class _NumpyTensors:
    """What the calls need of the library that the tensors come from."""

    @staticmethod
    def address(x):
        return x.ctypes.data

    @staticmethod
    def on_gpu(x):
        return False

    @staticmethod
    def contiguous(x):
        return x.flags.c_contiguous

    @staticmethod
    def empty(like, shape, dtype, nan):
        import numpy

        return numpy.full(shape, numpy.nan, dtype) if nan else numpy.empty(shape, dtype)


class _TorchTensors:
    @staticmethod
    def address(x):
        return x.data_ptr()

    @staticmethod
    def on_gpu(x):
        import torch

        if x.device.type == "cpu":
            return False
        if x.device.type != "cuda" or x.device.index != 0:
            raise ValueError(f"a tensor on {x.device}: the steps run on cuda:0 and on the CPU")
        if torch.cuda.current_stream().cuda_stream != 0:
            raise ValueError("the steps run on the default stream, and another one is current")
        return True

    @staticmethod
    def contiguous(x):
        return x.is_contiguous()

    @staticmethod
    def empty(like, shape, dtype, nan):
        import torch

        x = torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
        return x.fill_(float("nan")) if nan else x


def _tensors_of(x):
    return _TorchTensors if type(x).__module__.split(".")[0] == "torch" else _NumpyTensors


class Steps:
    """The library. Every call raises StepError with the library's line when it fails, ValueError for tensors that do
    not fit each other. An option `nan=True` fills the outputs with NaN first, so that an element that no kernel wrote
    shows."""

    def __init__(self, path):
        try:
            self._library = ctypes.CDLL(str(path))
            self._library.attention_build.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise LibraryMissing(f"{path} cannot be used: {error}") from error
        self.path = pathlib.Path(path)

    @classmethod
    def load(cls, path=None):
        """Opens the library at `path`, else the newest in the repository's build folders. Raises LibraryMissing."""
        if path is not None:
            if not pathlib.Path(path).is_file():
                raise LibraryMissing(f"{path} does not exist")
            return cls(pathlib.Path(path).resolve())
        built = sorted(REPOSITORY.glob("build*/libattention_steps.so"), key=lambda file: file.stat().st_mtime)
        if not built:
            raise LibraryMissing(
                "no libattention_steps.so in build*/: cmake -B build && cmake --build build --target attention_c"
            )
        return cls(built[-1])

    @property
    def build(self):
        """Commit, compiler and CUDA of the library, one line."""
        return self._library.attention_build().decode()

    def plan(self, step, method, q, k, **problem):
        """The Plan of a call with these tensors."""
        return self._plan(step, method, self._problem(q, k, **problem))

    def forward(self, step, q, k, v, *, nan=False, **problem):
        """(o, lse) by `step`."""
        kind = _tensors_of(q)
        o, lse = kind.empty(q, q.shape, _dtype(q), nan), kind.empty(q, q.shape[:3], "float32", nan)
        problem = self._problem(q, k, **problem)
        workspace, address = self._workspace(step, "forward", problem, q)
        tensors = self._addresses(q=q, k=k, v=v, o=o, lse=lse)
        self._call("attention_forward", step.encode(), ctypes.byref(problem), tensors, address)
        del workspace  # PyTorch's allocator hands it out again in stream order
        return o, lse

    def backward(self, step, q, k, v, o, lse, d_o, *, method="recompute backward", nan=False, **problem):
        """(dq, dk, dv) by `step`; o and lse are a forward's. A method that needs more than those is prepared here, each
        time."""
        return self.prepare(step, q, k, v, o, lse, method=method, **problem)(d_o, nan=nan)

    def prepare(self, step, q, k, v, o, lse, *, method, **problem):
        """What the forward would have saved for this backward (the standard backward's P), and a function of d_o that
        runs it."""
        problem = self._problem(q, k, **problem)
        kind = _tensors_of(q)
        workspace, address = self._workspace(step, method, problem, q)
        names = (step.encode(), method.encode(), ctypes.byref(problem))
        if method == "standard backward":
            self._call("attention_backward_prepare", *names, self._addresses(q=q, k=k, v=v, o=o, lse=lse), address)

        def run(d_o, nan=False, workspace=workspace):  # holds on to it
            dq, dk, dv = (kind.empty(x, x.shape, _dtype(x), nan) for x in (q, k, v))
            tensors = self._addresses(q=q, k=k, v=v, o=o, lse=lse, d_o=d_o, dq=dq, dk=dk, dv=dv)
            self._call("attention_backward", *names, tensors, address)
            return dq, dk, dv

        return run

    def torch_function(self, step, backward=None, method="recompute backward", **problem):
        """Attention for PyTorch's autograd: a function of q, k, v that gives o, by `step` and by a method of `backward`
        (the same step unless told)."""
        import torch

        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(context, q, k, v):
                o, lse = self.forward(step, q, k, v, **problem)
                context.save_for_backward(q, k, v, o, lse)
                return o

            @staticmethod
            def backward(context, d_o):
                return self.backward(
                    backward or step, *context.saved_tensors, d_o.contiguous(), method=method, **problem
                )

        return Attention.apply

    def _problem(
        self, q, k, causal=False, softmax_scale=None, tile=(0, 0), product=None, splits=0, deterministic=False
    ):
        if len(q.shape) != 4 or len(k.shape) != 4:
            raise ValueError(
                f"q and k must be [batch, heads, seqlen, head_dim], not {tuple(q.shape)}, {tuple(k.shape)}"
            )
        batch, heads, seqlen_q, head_dim = q.shape
        if (k.shape[0], k.shape[1], k.shape[3]) != (batch, heads, head_dim):
            raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} differ in batch, heads or head_dim")
        if _dtype(q) not in DTYPES:
            raise ValueError(f"dtype {_dtype(q)}: the steps take {', '.join(DTYPES)}")
        if product not in PRODUCTS:
            raise ValueError(f"product {product!r}: cuda-cores or tensor-cores")
        if 0 in (*q.shape, k.shape[2]):
            raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)}: sizes must be positive")
        scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
        device, sizes = int(_tensors_of(q).on_gpu(q)), (batch, heads, seqlen_q, k.shape[2], head_dim)
        options = (PRODUCTS[product], splits, int(deterministic))
        return _Problem(device, DTYPES[_dtype(q)], *sizes, int(causal), scale, *tile, *options)

    def _plan(self, step, method, problem):
        plan = Plan()
        self._call("attention_plan", step.encode(), method.encode(), ctypes.byref(problem), ctypes.byref(plan))
        return plan

    def _workspace(self, step, method, problem, like):
        """(memory to hold on to, its address)."""
        kind, size = _tensors_of(like), self._plan(step, method, problem).workspace_bytes
        if not size:
            return None, ctypes.c_void_p(None)
        # A scratch buffer is promised 256 bytes of alignment: CUDA's memory has it, the host's need not.
        memory = kind.empty(like, (size + (0 if kind.on_gpu(like) else 255),), "uint8", False)
        return memory, ctypes.c_void_p(kind.address(memory) + -kind.address(memory) % 256)

    def _addresses(self, **tensors):
        q, k = tensors["q"], tensors["k"]
        shapes = {
            "lse": q.shape[:3],
            **dict.fromkeys(("q", "o", "d_o", "dq"), q.shape),
            **dict.fromkeys(("k", "v", "dk", "dv"), k.shape),
        }
        kind = _tensors_of(q)
        for name, x in tensors.items():
            dtype = "float32" if name == "lse" else _dtype(q)
            if tuple(x.shape) != tuple(shapes[name]):
                raise ValueError(f"{name} must have the shape {tuple(shapes[name])}, not {tuple(x.shape)}")
            if _dtype(x) != dtype:
                raise ValueError(f"{name} must be {dtype}, not {_dtype(x)}")
            if not kind.contiguous(x):
                raise ValueError(f"{name} must be contiguous (.contiguous() in PyTorch, numpy.ascontiguousarray)")
            if _tensors_of(x) is not kind or kind.on_gpu(x) != kind.on_gpu(q):
                raise ValueError(f"{name} must lie where q is, on the {'GPU' if kind.on_gpu(q) else 'CPU'}")
        return ctypes.byref(_Tensors(**{name: kind.address(x) for name, x in tensors.items()}))

    def _call(self, function, *arguments):
        error = ctypes.create_string_buffer(512)
        code = getattr(self._library, function)(*arguments, error, len(error))
        if code != 0:
            raise StepError(code, error.value.decode(errors="replace"))


def _dtype(x):
    return str(x.dtype).removeprefix("torch.")
