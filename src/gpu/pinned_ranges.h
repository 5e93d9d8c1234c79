// Host memory of this process that was pinned here: each range once, whichever agents and transfers need it,
// and let go when the last of them has. One list for the process, as the driver has: to it, what another
// agent has pinned looks like what the application has, and would be gone with that agent.
//
// Two regions may share a page, and the driver pins a page once. So a page that a region does not fill is a
// range of its own, which its neighbour holds as well, and which either may outlive.
//
// Pinning and unpinning take 30 to 50 ms per GB each; neither delays requests for other memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace towline::cuda {

class Device;
class Pinned;
struct HostPages;
enum class Use : uint8_t;

class PinnedRanges {
 public:
  PinnedRanges();
  PinnedRanges(const PinnedRanges&) = delete;
  PinnedRanges& operator=(const PinnedRanges&) = delete;
  ~PinnedRanges();  // nobody holds a range

  // Pinned by Towline or the application, as long as the result lives; null: not pinned, or not yet. Any
  // thread. Throws Error: only a part is, or not for that use.
  std::shared_ptr<const Pinned> find(Device& device, uint64_t address, uint64_t bytes, Use use);
  // The same, and pins it now if needed.
  std::shared_ptr<const Pinned> take(Device& device, uint64_t address, uint64_t bytes, Use use);

 private:
  struct Range {
    uint64_t end = 0;
    uint64_t holders = 0;
    std::unique_ptr<Pinned> pinned;  // null: a thread is pinning or unpinning it
  };
  using Ranges = std::map<uint64_t, Range>;  // by begin; none overlaps another
  class Hold;
  class Together;
  using Holds = std::vector<std::shared_ptr<const Hold>>;  // never dropped under the lock
  struct Cover;

  [[nodiscard]] Cover look(uint64_t address, uint64_t bytes);
  void look_at(const HostPages& part, Cover& cover);
  std::shared_ptr<const Pinned> together(const Cover& cover, Holds& holds);
  std::shared_ptr<const Hold> pin(std::unique_lock<std::mutex>& lock, Device& device, const HostPages& pages);
  [[nodiscard]] Ranges::iterator overlapping(uint64_t begin, uint64_t end);
  void remove(std::unique_lock<std::mutex>& lock, Ranges::iterator range) noexcept;

  std::mutex mutex_;
  std::condition_variable settled_;  // a range was pinned or unpinned
  Ranges ranges_;
};

}  // namespace towline::cuda
