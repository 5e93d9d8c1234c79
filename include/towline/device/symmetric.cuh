// Symmetric memory as kernels use it: memory of every rank of a host, mapped by all of them, and words by which
// ranks signal one another. A kernel gets a `Symmetric` by value.
//
//   towline::device::put(group, peer, offset, from, bytes);      // all threads of the block
//   towline::device::signal(group, peer, slot);                  // after it: one thread or all
//   if (!towline::device::wait(group, peer, slot, count, nanoseconds)) ...  // it never came
//
// Every wait has a bound. put, get, signal, wait and barrier are called by all threads of a block, and several
// blocks use different slots. The same source compiles as C++ for tests without a GPU: there a block has one thread.
#pragma once

#include <stdint.h>

#if defined(__CUDACC__)
#define TOWLINE_DEVICE __device__ __forceinline__
#define TOWLINE_DEVICE_CALL __device__ __noinline__  // too large, or too rare, to be repeated in every kernel
#define TOWLINE_UNROLL _Pragma("unroll")
#else
#include <sched.h>
#include <string.h>
#include <time.h>
#define TOWLINE_DEVICE inline
#define TOWLINE_DEVICE_CALL inline
#define TOWLINE_UNROLL
#endif

namespace towline::device {

// On one host.
inline constexpr uint32_t kMaxRanks = 16;

// ---- Threads

#if defined(__CUDA_ARCH__)
TOWLINE_DEVICE uint32_t thread() { return threadIdx.x; }
TOWLINE_DEVICE uint32_t threads() { return blockDim.x; }
TOWLINE_DEVICE void sync() { __syncthreads(); }
TOWLINE_DEVICE bool sync_any(bool value) { return __syncthreads_or(value) != 0; }
TOWLINE_DEVICE void pause() {}
TOWLINE_DEVICE uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
#else
TOWLINE_DEVICE uint32_t thread() { return 0; }
TOWLINE_DEVICE uint32_t threads() { return 1; }
TOWLINE_DEVICE void sync() {}
TOWLINE_DEVICE bool sync_any(bool value) { return value; }
#if defined(__CUDACC__)
TOWLINE_DEVICE void pause() {}
TOWLINE_DEVICE uint64_t now_ns() { return 0; }
#else
TOWLINE_DEVICE void pause() { sched_yield(); }
TOWLINE_DEVICE uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}
#endif
#endif

// ---- Words that other ranks read and write

#if defined(__CUDA_ARCH__)
TOWLINE_DEVICE uint64_t load_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
TOWLINE_DEVICE void store_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
TOWLINE_DEVICE uint64_t load_relaxed(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
TOWLINE_DEVICE void store_relaxed(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
TOWLINE_DEVICE void fence() { __threadfence_system(); }
// Among ranks of one GPU, where these are cheaper.
TOWLINE_DEVICE void fence_here() { __threadfence(); }
TOWLINE_DEVICE uint64_t load_acquire_here(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
TOWLINE_DEVICE void store_release_here(uint64_t* word, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
// True for the one that changes 0 to 1.
TOWLINE_DEVICE bool claim(uint64_t* word) {
  return atomicCAS_system(reinterpret_cast<unsigned long long*>(word), 0ull, 1ull) == 0;
}
// After all that this thread has written, or has seen written.
TOWLINE_DEVICE void add_release(uint64_t* word, uint64_t value) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
#elif !defined(__CUDACC__)
inline void add_release(uint64_t* word, uint64_t value) { __atomic_fetch_add(word, value, __ATOMIC_RELEASE); }
inline uint64_t load_acquire(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void store_release(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline uint64_t load_relaxed(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
inline void store_relaxed(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
inline void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void fence_here() { fence(); }
inline uint64_t load_acquire_here(const uint64_t* word) { return load_acquire(word); }
inline void store_release_here(uint64_t* word, uint64_t value) { store_release(word, value); }
inline bool claim(uint64_t* word) {
  uint64_t none = 0;
  return __atomic_compare_exchange_n(word, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
#else  // nvcc's pass for the host, which calls none of them
inline void add_release(uint64_t* word, uint64_t value) { *word += value; }
inline uint64_t load_acquire(const uint64_t* word) { return *word; }
inline void store_release(uint64_t* word, uint64_t value) { *word = value; }
inline uint64_t load_relaxed(const uint64_t* word) { return *word; }
inline void store_relaxed(uint64_t* word, uint64_t value) { *word = value; }
inline void fence() {}
inline void fence_here() {}
inline uint64_t load_acquire_here(const uint64_t* word) { return *word; }
inline void store_release_here(uint64_t* word, uint64_t value) { *word = value; }
inline bool claim(uint64_t*) { return false; }
#endif

// ---- Bytes

struct alignas(16) Pack {
  uint32_t word[4];
};

#if defined(__CUDA_ARCH__)
TOWLINE_DEVICE Pack load_pack(uint64_t address) {
  Pack p;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.word[3])
               : "l"(address)
               : "memory");
  return p;
}
TOWLINE_DEVICE void store_pack(uint64_t address, const Pack& p) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(p.word[0]),
               "r"(p.word[1]), "r"(p.word[2]), "r"(p.word[3])
               : "memory");
}
template <class Unit>
TOWLINE_DEVICE Unit load_unit(uint64_t address) {
  return *reinterpret_cast<const volatile Unit*>(address);
}
template <class Unit>
TOWLINE_DEVICE void store_unit(uint64_t address, Unit value) {
  *reinterpret_cast<volatile Unit*>(address) = value;
}
#else
inline Pack load_pack(uint64_t address) { return *reinterpret_cast<const Pack*>(address); }
inline void store_pack(uint64_t address, const Pack& p) { *reinterpret_cast<Pack*>(address) = p; }
template <class Unit>
inline Unit load_unit(uint64_t address) {
  Unit value;
  __builtin_memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
  return value;
}
template <class Unit>
inline void store_unit(uint64_t address, Unit value) {
  __builtin_memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
}
#endif

template <class Unit>
TOWLINE_DEVICE void copy_units(uint64_t to, uint64_t from, uint64_t units, uint64_t me, uint64_t of) {
  for (uint64_t i = me; i < units; i += of)
    store_unit<Unit>(to + i * sizeof(Unit), load_unit<Unit>(from + i * sizeof(Unit)));
}

// Any addresses and any length; the share of thread `me` of the `of` threads that copy.
TOWLINE_DEVICE_CALL void copy_share(uint64_t to, uint64_t from, uint64_t bytes, uint64_t me, uint64_t of) {
  const uint64_t apart = to | from;
  if ((apart & 3) != 0) return copy_units<uint8_t>(to, from, bytes, me, of);
  uint64_t done = 0;
  if ((apart & 15) == 0) {
    constexpr uint32_t kUnroll = 4;
    const uint64_t packs = bytes / 16;
    uint64_t i = me;
    for (; i + (kUnroll - 1) * of < packs; i += kUnroll * of) {
      Pack data[kUnroll];
      TOWLINE_UNROLL
      for (uint32_t k = 0; k < kUnroll; ++k) data[k] = load_pack(from + (i + k * of) * 16);
      TOWLINE_UNROLL
      for (uint32_t k = 0; k < kUnroll; ++k) store_pack(to + (i + k * of) * 16, data[k]);
    }
    for (; i < packs; i += of) store_pack(to + i * 16, load_pack(from + i * 16));
    done = packs * 16;
  } else {
    copy_units<uint32_t>(to, from, bytes / 4, me, of);
    done = bytes / 4 * 4;
  }
  copy_units<uint8_t>(to + done, from + done, bytes - done, me, of);
}
// The same by the threads of one block.
TOWLINE_DEVICE void copy(uint64_t to, uint64_t from, uint64_t bytes) {
  copy_share(to, from, bytes, thread(), threads());
}

// ---- Groups of ranks

// A rank's view. Addresses are this rank's: of each rank's memory, and of each rank's signal words, which are
// `slots` words for each rank that signals.
struct Symmetric {
  uint64_t memory[kMaxRanks];
  uint64_t signals[kMaxRanks];
  uint64_t bytes;  // of each rank's memory
  uint32_t rank;
  uint32_t size;
  uint32_t slots;
  uint32_t reserved;
};

// The word at `to` that `from` counts up.
TOWLINE_DEVICE uint64_t* signal_word(const Symmetric& group, uint32_t to, uint32_t from, uint32_t slot) {
  return reinterpret_cast<uint64_t*>(group.signals[to]) + from * group.slots + slot;
}

// Writes into a rank's memory. The rank sees the bytes after it waited for a later signal.
TOWLINE_DEVICE void put(const Symmetric& group, uint32_t to, uint64_t offset, const void* from,
                        uint64_t bytes) {
  copy(group.memory[to] + offset, reinterpret_cast<uint64_t>(from), bytes);
}
TOWLINE_DEVICE void get(const Symmetric& group, uint32_t from, uint64_t offset, void* to, uint64_t bytes) {
  copy(reinterpret_cast<uint64_t>(to), group.memory[from] + offset, bytes);
}
// Adds one to this rank's word there. One block at a time uses a slot.
TOWLINE_DEVICE void signal(const Symmetric& group, uint32_t to, uint32_t slot) {
  sync();
  if (thread() != 0) return;
  uint64_t* const word = signal_word(group, to, group.rank, slot);
  store_release(word, load_relaxed(word) + 1);
}
// Waits until that rank's word has reached `count`. False: it did not, within the time.
TOWLINE_DEVICE bool wait(const Symmetric& group, uint32_t from, uint32_t slot, uint64_t count,
                         uint64_t limit_ns) {
  bool late = false;
  if (thread() == 0) {
    const uint64_t* const word = signal_word(group, group.rank, from, slot);
    const uint64_t began = now_ns();
    while (load_acquire(word) < count && !late) {
      pause();
      late = now_ns() - began >= limit_ns;
    }
  }
  return !sync_any(late);
}
// All ranks: what each wrote before, all see after. `count` is 1 for a slot's first barrier, then 2, ...
// False: a rank did not come within the time.
TOWLINE_DEVICE bool barrier(const Symmetric& group, uint32_t slot, uint64_t count, uint64_t limit_ns) {
  sync();
  bool late = false;
  for (uint32_t peer = thread(); peer < group.size; peer += threads())
    store_release(signal_word(group, peer, group.rank, slot), count);
  const uint64_t began = now_ns();
  for (uint32_t peer = thread(); peer < group.size; peer += threads()) {
    const uint64_t* const word = signal_word(group, group.rank, peer, slot);
    while (load_acquire(word) < count && !late) {
      pause();
      late = now_ns() - began >= limit_ns;
    }
  }
  return !sync_any(late);
}

}  // namespace towline::device
