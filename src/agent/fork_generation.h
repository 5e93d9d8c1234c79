// How often this process has forked, as seen in this process: the child's is one more than its parent's. It counts once
// something has asked for that.
#pragma once

#include <atomic>
#include <cstdint>

namespace towline {

extern std::atomic<uint64_t> process_fork_generation;  // agent.cc counts
void count_forks() noexcept;
inline uint64_t fork_generation() noexcept { return process_fork_generation.load(std::memory_order_relaxed); }

}  // namespace towline
