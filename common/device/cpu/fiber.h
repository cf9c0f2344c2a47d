// Fibers: the threads of a block, several on one OS thread, that hand over to each other where they wait at a barrier.
// A switch is a handful of moved registers with Boost.Context (about 5 ns, plus the cache misses of the other stack)
// and a system call with ucontext (about 0.4 us), which every Linux has.
#pragma once

#include <cstddef>

#if defined(ATTN_HAVE_BOOST_CONTEXT)
#include <boost/context/detail/fcontext.hpp>
#else
#include <ucontext.h>
#endif

namespace attention::executor {

/// One context of execution. A default-made Fiber stands for the OS thread itself; start() gives it a stack of its own.
/// A fiber stays on the OS thread that started it, and an exception must not leave its entry function.
class Fiber {
 public:
  using Entry = void (*)(Fiber& self);  // never returns

  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the next switch to this fiber call `entry` on the stack of `bytes` bytes that ends at `stack_top`. Whatever
  /// it was doing before is forgotten (objects on its stack are not destroyed).
  void start(void* stack_top, std::size_t bytes, Entry entry);

  /// Suspends this fiber, which must be the running one, and continues `next`.
  void switch_to(Fiber& next);

 private:
  Entry entry_ = nullptr;
  Fiber* next_ = nullptr;  // whom the last switch_to went to: a fiber that runs for the first time finds itself by it
#if defined(ATTN_HAVE_BOOST_CONTEXT)
  static void first_entry(boost::context::detail::transfer_t from);
  boost::context::detail::fcontext_t context_ = nullptr;
#else
  static void first_entry(unsigned high, unsigned low);
  ucontext_t context_{};
#endif
};

/// Which mechanism this build switches fibers with: "Boost.Context" or "ucontext".
const char* fiber_mechanism();

/// The stack of one fiber, with a page below it that no one may touch: an overflow stops the program at once instead of
/// changing another fiber's variables.
class FiberStack {
 public:
  /// `colour` shifts the top of the stack: stacks that all start at the same offset from a large power of two would
  /// share the same few cache sets. Throws std::bad_alloc.
  explicit FiberStack(unsigned colour);
  ~FiberStack();
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  void* top() const { return top_; }
  std::size_t bytes() const { return bytes_; }

 private:
  char* mapping_;
  char* top_;
  std::size_t bytes_;
};

#if defined(ATTN_HAVE_BOOST_CONTEXT)
inline void Fiber::switch_to(Fiber& next) {
  next_ = &next;
  const boost::context::detail::transfer_t from = boost::context::detail::jump_fcontext(next.context_, this);
  static_cast<Fiber*>(from.data)->context_ = from.fctx;  // we run again: keep where the fiber that woke us stopped
}
#endif

}  // namespace attention::executor
