/* The steps as a library with a C interface: libattention_steps.so, for programs that hold their tensors themselves (PyTorch and
   NumPy through plots/attention_steps.py). No timing and no check inside: a call enqueues the step's kernels and returns.

   Tensors are contiguous and 16-byte aligned. On a GPU the addresses are those of device 0 and the kernels go to its legacy default
   stream, which is PyTorch's stream unless told otherwise; with the CPU executor they are host addresses, and the call returns when
   the kernels have ended.

   Every function returns the exit codes of the steps' command line: 0 ok, 1 a finding of the CPU executor, 2 bad arguments, 3 this
   step cannot serve this device or shape, 4 CUDA error or out of memory. Unless it is 0, `error` holds one line, cut to `error_size`
   bytes with its closing zero. Calls may come from several threads; they run one after the other. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { kAttentionOnCpu = 0, kAttentionOnGpu = 1 };                   /* AttentionProblem::device */
enum { kAttentionFp32 = 0, kAttentionFp16 = 1, kAttentionBf16 = 2 }; /* AttentionProblem::dtype */
/* AttentionProblem::product, --product of the command line: fp32 alone has the choice, and takes the CUDA cores unless told. On
   tensor cores no call looks for numbers that cannot be split (docs/exact-tensor-cores.md, "What it cannot hold"): that is the
   caller's, as every check is. */
enum { kAttentionUsualProduct = 0, kAttentionCudaCores = 1, kAttentionTensorCores = 2 };

/* O = softmax(softmax_scale Q K^T) V. Causal is bottom-right: query i sees the keys j <= i + seqlen_k - seqlen_q. */
typedef struct {
  int32_t device, dtype;
  int64_t batch, heads, seqlen_q, seqlen_k, head_dim;
  int32_t causal;
  float softmax_scale;
  int32_t tile_br, tile_bc; /* 0x0: the first tile of the step that fits the device */
  int32_t product;
  int32_t splits;        /* step09: a row's keys are shared out among up to so many blocks; 0: as many as pay */
  int32_t deterministic; /* not 0: dq of step10 and step11 has the same bits in every run, as all else always has */
} AttentionProblem;

/* q, o, d_o, dq [batch, heads, seqlen_q, head_dim]; k, v, dk, dv [batch, heads, seqlen_k, head_dim], all of the problem's dtype;
   lse [batch, heads, seqlen_q] in fp32, natural log. What a call does not need may be null. */
typedef struct {
  const void *q, *k, *v;
  void *o, *lse;
  const void* d_o;
  void *dq, *dk, *dv;
} AttentionTensors;

/* What a call of one method asks for. */
typedef struct {
  int32_t tile_br, tile_bc;
  int64_t
      workspace_bytes; /* scratch beyond the tensors above: S and P in step01 and step02, P, dP, dS or delta in step05 */
  int32_t kernels;
  int64_t useful_flops, executed_flops;
} AttentionPlan;

/* `method` is "forward" or, in step05, "standard backward" or "recompute backward". */
int attention_plan(const char* step, const char* method, const AttentionProblem* problem, AttentionPlan* plan,
                   char* error, int error_size);

/* Reads q, k, v; writes o and lse. `workspace`: workspace_bytes of attention_plan, 256-byte aligned (null where that is 0). */
int attention_forward(const char* step, const AttentionProblem* problem, const AttentionTensors* tensors,
                      void* workspace, char* error, int error_size);

/* Writes what this backward reads and a forward of its own would have left: lse and, for the recompute backward, o (so after any
   step's forward it needs no prepare); for the standard backward P in `workspace`, which must stay as it is until
   attention_backward. */
int attention_backward_prepare(const char* step, const char* method, const AttentionProblem* problem,
                               const AttentionTensors* tensors, void* workspace, char* error, int error_size);

/* Reads q, k, v, d_o and o and lse (recompute) or P (standard); writes dq, dk, dv. `o` and `lse` must be there for both. */
int attention_backward(const char* step, const char* method, const AttentionProblem* problem,
                       const AttentionTensors* tensors, void* workspace, char* error, int error_size);

/* One line: the steps' git commit, the compiler and, where there is one, the CUDA version and architectures. */
const char* attention_build(void);

#ifdef __cplusplus
}
#endif
