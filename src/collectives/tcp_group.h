// Operations over a mesh among ranks of which no two share memory. Parts and roots are the group's own
// indices.
//
// Reductions are pairwise: every rank sends each other rank the part that that rank reduces, in rank order;
// then all ranks exchange the results. This moves no more bytes than a ring, rounds once and gives the same
// bits on every rank. Small ones are gathered on all ranks, in log2(n) steps, and reduced by each.
//
// In any order (the hint `order`), a rank adds what other ranks send it as it comes, and no rank holds up another's pieces. An
// element still has one rank that reduces it, so all ranks get the same bits, but not the same ones in every run. Sums of 16-
// and 8-bit floats stay in float32 until the last addition, and are rounded once.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "collectives/calls/call.h"
#include "collectives/tcp_mesh.h"

namespace towline::collectives {

// Of all groups of a communicator.
struct Arrivals {
  bool any_order = false;
  std::atomic<uint64_t> added_early =
      0;  // pieces that were added before another rank's of the same place had come
};

class TcpGroup {
 public:
  TcpGroup(TcpMesh& mesh, int index, std::vector<int> ranks, Arrivals& arrivals);

  int index() const noexcept { return index_; }
  int size() const noexcept { return static_cast<int>(ranks_.size()); }

  Status barrier(const Call& call);
  Status all_reduce(const Call& call);
  Status reduce(const Call& call);
  Status broadcast(const Call& call);
  Status all_gather(const Call& call);
  Status reduce_scatter(const Call& call);
  // `beside`: ranks whose parts are moved elsewhere, including the root.
  Status gather(const Call& call, std::span<const int> beside = {});
  Status scatter(const Call& call, std::span<const int> beside = {});
  // `beside`: ranks whose parts were moved elsewhere, including this one.
  Status all_to_all(const Call& call, std::span<const int> beside = {});
  // Call before operations that only exchange data between a root and the others, so that ranks that disagree
  // do not wait for one another: if not all headers are equal, some rank's header differs from that of the
  // rank before it.
  Status compare(const Call& call);

 private:
  // Sends `out` to the rank `step` further and receives `in` from the rank `step` back.
  Status swap(const Call& call, int step, std::span<const uint8_t> out, std::span<uint8_t> in);
  // Performs all moves recorded with give() and take() at once.
  Status exchange(const Call& call);
  void give(int to, std::span<const uint8_t> out) { messages_.push_back({rank(to), true, out, {}}); }
  void take(int from, std::span<uint8_t> in) { messages_.push_back({rank(from), false, {}, in}); }
  int rank(int index) const { return ranks_[static_cast<size_t>(index)]; }
  Status send(const Call& call, int to, std::span<const uint8_t> out);
  Status receive(const Call& call, int from, std::span<uint8_t> in);
  int ahead(int step) const { return (index_ + step) % size(); }
  int back(int step) const { return (index_ - step + size()) % size(); }
  Status collect(const Call& call, const uint8_t* mine, uint64_t bytes);
  Status reduce_parts(const Call& call, const Parts& in, uint8_t* to);
  Status reduce_in_any_order(const Call& call, const Parts& in, uint8_t* to);
  Status share_parts(const Call& call, const uint8_t* mine, const Parts& out);
  void cut(const Call& call, uint8_t* base, Parts& parts) const;

  TcpMesh& mesh_;
  const int index_;
  const std::vector<int> ranks_;
  Arrivals& arrivals_;
  std::vector<uint8_t> received_;
  std::vector<uint8_t> result_;
  std::vector<const void*> sources_;
  std::vector<TcpMesh::Message> messages_;
  std::vector<uint64_t> moved_;   // of each message's part, in any order
  std::vector<float> unrounded_;  // sums of 16- and 8-bit floats of the own part, in any order
  std::vector<uint32_t> absent_;  // ranks whose piece has not come, of each piece of the own part
  Parts in_;
  Parts out_;
};

}  // namespace towline::collectives
