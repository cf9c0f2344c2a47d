// yardstick  three kernels with cuBLAS                                                  docs/yardstick.md
//
// What PyTorch's eager attention does, without Python: softmax(Q K^T) V with the products of NVIDIA's library and,
// between them, step02's softmax. It is no step of the ladder. It stands beside step02 in every table, so that a reader
// sees what a better product alone would give.
//
//      Q, K ──cuBLAS──▶ S ──softmax──▶ P, V ──cuBLAS──▶ O        everything named here lies in HBM
//                    causal: ──mask──▶ (writes -inf into the part of S that is not seen)
//
//   HBM       4X + 4S + L elements (causal: + the elements of S that are hidden)
//   executes  4 N^2 d FLOPs per head          extra memory  S, P, LSE (and cuBLAS's own workspace)
//
//   make yardstick && ./yardstick
#include <cublas_v2.h>

#include "steps/step02_fused_row_softmax.cu"

namespace attention::ATTN_DEVICE::yardstick {

void cublas_check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceFailure(std::string("cuBLAS error ") + cublasGetStatusName(status) + " at " + call);
}

/// The process's handle, on the default stream. Creating it takes a fraction of a second, which falls into the first,
/// untimed run.
cublasHandle_t handle() {
  static cublasHandle_t created = [] {
    cublasHandle_t handle{};
    cublas_check(cublasCreate(&handle), "cublasCreate");
    cublas_check(
        cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH), "cublasSetMathMode");  // fp32 without TF32, as PyTorch has it
    return handle;
  }();
  return created;
}

cudaDataType_t data_type(Dtype dtype) {
  return dtype == Dtype::fp32 ? CUDA_R_32F : dtype == Dtype::fp16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// One head's matrix of a tensor [heads, rows, cols], contiguous.
struct Matrix {
  const void* data;
  int64_t rows, cols;
};

/// C = scale A B^T (or, with b_transposed false, scale A B) for each head; all row by row as our tensors are, sums in
/// fp32. cuBLAS stores column by column: what it calls an m x n matrix is our n x m one, so it is asked for C^T = B
/// A^T.
void launch_product(const char* name, const Problem& p, float scale, Matrix a, Matrix b, bool b_transposed, void* c) {
  const int64_t c_cols = b_transposed ? b.rows : b.cols, size = bytes_per_element(p.dtype);
  const float zero = 0;
  constexpr int64_t kMostHeads =
      65535;  // of one call: a grid's z is no larger, and the library may put the heads there
  LaunchLog& log = launch_log();
  log.before_call(name);
  for (int64_t head = 0; head < p.heads_total(); head += kMostHeads) {
    const auto from_head = [&](const void* data, int64_t elements) {
      return static_cast<const char*>(data) + head * elements * size;
    };
    cublas_check(cublasGemmStridedBatchedEx_64(
                     handle(), b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, c_cols, a.rows, a.cols, &scale,
                     from_head(b.data, b.rows * b.cols), data_type(p.dtype), b.cols, b.rows * b.cols,
                     from_head(a.data, a.rows * a.cols), data_type(p.dtype), a.cols, a.rows * a.cols, &zero,
                     static_cast<char*>(c) + head * a.rows * c_cols * size, data_type(p.dtype), c_cols, a.rows * c_cols,
                     std::min(kMostHeads, p.heads_total() - head), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 name);
  }
  log.after(name);
}

/// S = -inf where the query does not see the key. A block owns a row.
template <class E>
__global__ void mask_scores(Mask mask, Global<E> S) {
  const int64_t head = blockIdx.x / mask.seqlen_q, i = blockIdx.x % mask.seqlen_q;
  for (int64_t j = mask.keys_end(i + 1) + threadIdx.x; j < mask.seqlen_k; j += blockDim.x)
    S.head(head).store(i, j, -INFINITY);
}

void launch_mask(const Problem& p, Target S) {
  const Mask mask{p.seqlen_q, p.seqlen_k, p.causal};
  with_element(p, [&](auto element) {
    using E = decltype(element);
    launch("mask", mask_scores<E>, p.L(), 256, 0, mask, pairs<E>(p, S));
  });
}

inline void forward(const Problem& p, const Tensors& t) {
  void *S = t.scratch("S"), *P = t.scratch("P");
  launch_product("scores", p, p.softmax_scale, {t.q, p.seqlen_q, p.head_dim}, {t.k, p.seqlen_k, p.head_dim}, true, S);
  if (p.causal) launch_mask(p, Target{S, "S"});
  step02::launch_softmax(p, Source{S, "S"}, Target{P, "P"}, Target{t.lse, "LSE"});
  launch_product("values", p, 1, {P, p.seqlen_q, p.seqlen_k}, {t.v, p.seqlen_k, p.head_dim}, false, t.o);
}

/// What a library's kernel asks for is its own affair; what must cross HBM is known all the same.
inline std::vector<KernelCost> cost(const Problem& p) {
  const Visits whole = visits_all(p.seqlen_q, p.seqlen_k, 1, 1);
  std::vector<KernelCost> kernels = {
      KernelCost("scores", p)
          .by_library()
          .loads("Q", 0, p.Xq())
          .loads("K", 0, p.Xk())
          .stores("S", 0, p.S())
          .multiplies(whole)};
  const int64_t hidden = p.S() - visible_pairs(p) * p.heads_total();
  if (p.causal) kernels.push_back(KernelCost("mask", p).stores("S", hidden, hidden));
  kernels.push_back(step02::softmax_cost(p));
  kernels.push_back(KernelCost("values", p)
                        .by_library()
                        .loads("P", 0, p.S())
                        .loads("V", 0, p.Xk())
                        .stores("O", 0, p.Xq())
                        .multiplies(whole));
  return kernels;
}

/// cuBLAS chooses its tiles; 0x0 says so.
inline std::vector<TileChoice> tiles(const Problem&) { return {{TileShape{}, 0}}; }

inline Step step() {
  Method method = step02::step().methods.front();  // the same buffers, the same S and P in HBM
  method.cost = cost;
  method.run = forward;
  return {.id = "yardstick",
          .title = "three kernels with cuBLAS",
          .idea = "step02 with the products of NVIDIA's library: PyTorch eager without Python",
          .chapter = "docs/yardstick.md",
          .kind = "yardstick",
          .tiles = tiles,
          .largest_head_dim = 256,
          .fp32_tolerance_factor = 8,
          .methods = {method}};
}

}  // namespace attention::ATTN_DEVICE::yardstick
