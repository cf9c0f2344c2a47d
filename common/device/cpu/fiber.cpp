#include "common/device/cpu/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace attention::executor {

#if defined(ATTN_HAVE_BOOST_CONTEXT)

void Fiber::first_entry(boost::context::detail::transfer_t from) {
  Fiber* waker = static_cast<Fiber*>(from.data);
  waker->context_ = from.fctx;
  waker->next_->entry_(*waker->next_);
}

void Fiber::start(void* stack_top, std::size_t bytes, Entry entry) {
  entry_ = entry;
  context_ = boost::context::detail::make_fcontext(stack_top, bytes, first_entry);
}

const char* fiber_mechanism() { return "Boost.Context"; }

#else

// makecontext passes ints only, so the address travels in two halves.
void Fiber::first_entry(unsigned high, unsigned low) {
  const std::uintptr_t address = (static_cast<std::uintptr_t>(high) << 32) | low;
  Fiber& self = *reinterpret_cast<Fiber*>(address);
  self.entry_(self);
}

void Fiber::start(void* stack_top, std::size_t bytes, Entry entry) {
  entry_ = entry;
  getcontext(&context_);
  context_.uc_stack.ss_sp = static_cast<char*>(stack_top) - bytes;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&context_, reinterpret_cast<void (*)()>(first_entry), 2, static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
}

void Fiber::switch_to(Fiber& next) {
  next_ = &next;
  swapcontext(&context_, &next.context_);
}

const char* fiber_mechanism() { return "ucontext"; }

#endif

namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMapping = 256 * 1024;  // address space; only the pages that a kernel touches cost memory
constexpr std::size_t kColourStep =
    33 * 64;  // an odd number of cache lines, so that neighbours start in different sets
constexpr std::size_t kColourRange = 64 * 1024;
}  // namespace

FiberStack::FiberStack(unsigned colour) {
  void* memory = mmap(nullptr, kMapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<char*>(memory);
  mprotect(mapping_, kPage, PROT_NONE);  // without it (the system can run out of mappings) everything still works
  top_ = mapping_ + kMapping - colour * kColourStep % kColourRange / 64 * 64;
  bytes_ = static_cast<std::size_t>(top_ - mapping_) - kPage;
}

FiberStack::~FiberStack() { munmap(mapping_, kMapping); }

}  // namespace attention::executor
