// Parts of any size, and hosts with any numbers of ranks. No column has all of them, so hops are lists of messages between
// two ranks each.
//
// Rank j of a host deals with the parts of another host's ranks j, j + n, j + 2n, ..., where n ranks share that work: one part a
// *round*. Counts of all_gather_v and reduce_scatter_v are known to all ranks. In all_to_all_v each pair knows its own, and
// the two have the same chunks of them.
#include <algorithm>

#include "base/error.h"
#include "collectives/calls/types.h"
#include "collectives/hosts_pipeline.h"
#include "collectives/hosts_steps.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kRootSlots = 16;  // ranks of other hosts that a root deals with at a time

// Of a part, in a chunk.
uint64_t clip(uint64_t bytes, uint64_t begin, uint64_t most) {
  return bytes <= begin ? 0 : std::min(bytes - begin, most);
}

}  // namespace

uint64_t HostsSteps::most_rounds() const noexcept {
  uint64_t all = 0;
  for (size_t host = 0; host < layout_->hosts.size(); ++host) all += rounds(host, layout_->columns);
  return all;
}

uint64_t HostsSteps::slot_bytes(uint64_t slots) const {
  const uint64_t bytes = slots > kMostExchangeSlots ? 0 : std::min(part_bytes(slots), kMostExchangeBytes - 1);
  if (bytes < kStagingLine || layout_->host_of.size() > kMostExchangeRanks)
    fail(Status::kUnsupported,
         "{} among {} GPUs of {} hosts needs {} places in staging memory: set "
         "tuning.collectives.gpu_staging_bytes to "
         "more (at most {} places, {} ranks), or use NCCL",
         op_name(call_->op), layout_->host_of.size(), layout_->hosts.size(), slots, kMostExchangeSlots,
         kMostExchangeRanks);
  return bytes / kStagingLine * kStagingLine;
}

// In as many hops as they need, all but the last of which are awaited. Takes entries_. All ranks have their entries in the order
// of hosts, so that the first pair of ranks that is not done is in a hop of both.
bool HostsSteps::post_entries(HopKind kind, const Chunk& chunk, uint64_t stride, uint64_t step) {
  const uint64_t all = entries_.size();
  for (uint64_t at = 0; at == 0 || at < all; at += kMostHopEntries) {
    const uint64_t count = std::min<uint64_t>(all - at, kMostHopEntries);
    const bool last = at + count == all;
    Hop hop = hop_of(last || kind != HopKind::kExchangeReduce ? kind : HopKind::kExchange, chunk, 0, stride);
    hop.header.step = static_cast<uint8_t>(step);
    hop.entries = static_cast<uint32_t>(count);
    for (uint64_t i = 0; i < count; ++i) hop.entry[i] = entries_[at + i].packed();
    if (last && kind == HopKind::kExchangeReduce) {
      hop.first = static_cast<uint32_t>(most_rounds());
      hop.bytes = chunk.bytes;
    }
    add_post(hop);
    if (!last) steps_.emplace_back().kind = TOWLINE_STEP_AWAIT;
  }
  entries_.clear();
  return true;
}

// An operation of this host with a part for each of its ranks: those of a round of `host`, as far as they are in the chunk.
towline_collective_t& HostsSteps::add_parts(uint32_t op, size_t host, uint64_t round, const Parts& parts,
                                            const Chunk& chunk) {
  const std::vector<int>& ranks = layout_->hosts[host];
  const size_t here = layout_->here().size();
  std::vector<uint64_t>& counts = counts_.emplace_back();
  std::vector<void*>& list = lists_.emplace_back();
  for (size_t i = 0; i < here; ++i) {
    const size_t at = round * here + i;
    const size_t rank = at < ranks.size() ? static_cast<size_t>(ranks[at]) : 0;
    counts.push_back(at < ranks.size() ? clip(parts.bytes[rank], chunk.begin, chunk.bytes) / parts_.element
                                       : 0);
    list.push_back(counts.back() == 0 ? nullptr : parts.at[rank] + chunk.begin);
  }
  towline_collective_t& made = add_call(op, counts[layout_->index]);
  if (op == TOWLINE_COLLECTIVE_ALL_GATHER_V) {
    made.outputs = list.data();
    made.output_counts = counts.data();
  } else {
    made.inputs = list.data();
    made.input_counts = counts.data();
  }
  return made;
}

// Slot 0 has this rank's part, and the others those that other hosts' ranks send it, which it then gives to its own host.
void HostsSteps::gather_parts() {
  const uint64_t slot = slot_bytes(1 + most_rounds());
  const std::vector<int>& here = layout_->here();
  const uint64_t mine = parts_.bytes;
  const uint64_t largest = *std::ranges::max_element(parts_.out.bytes);
  pipeline(
      largest, slot,
      [&](const Chunk& chunk) {
        add_move(chunk.stage, parts_.input + chunk.begin, clip(mine, chunk.begin, chunk.bytes));
      },
      [&](const Chunk& chunk) {
        uint32_t to = 0;
        for (size_t host = 0; host < layout_->hosts.size(); ++host) {
          if (host == layout_->mine) continue;
          const std::vector<int>& ranks = layout_->hosts[host];
          entries_.push_back(
              {ranks[layout_->index % ranks.size()], true, 0, clip(mine, chunk.begin, chunk.bytes)});
          for (size_t i = layout_->index; i < ranks.size(); i += here.size()) {
            const uint64_t bytes = parts_.out.bytes[static_cast<size_t>(ranks[i])];
            entries_.push_back({ranks[i], false, ++to, clip(bytes, chunk.begin, chunk.bytes)});
          }
        }
        return post_entries(HopKind::kExchange, chunk, slot, chunk.number);
      },
      [&](const Chunk& chunk) {
        uint64_t from = 0;
        for (size_t host = 0; host < layout_->hosts.size(); ++host) {
          for (uint64_t round = 0; round < rounds(host, here.size()); ++round) {
            towline_collective_t& made =
                add_parts(TOWLINE_COLLECTIVE_ALL_GATHER_V, host, round, parts_.out, chunk);
            const bool has = round * here.size() + layout_->index < layout_->hosts[host].size();
            if (host == layout_->mine && clip(mine, chunk.begin, chunk.bytes) != 0)
              made.input = parts_.input + chunk.begin;
            else
              made.input = chunk.stage + (host == layout_->mine || !has ? 0 : ++from) * slot;
          }
        }
      });
}

// Each rank sums this host's inputs for the parts that it deals with: its own in slot 0, then other hosts'. It sends those to
// their ranks, and reduces what it gets from every host, in a slot behind them.
void HostsSteps::reduce_parts() {
  const size_t hosts = layout_->hosts.size();
  const uint64_t sums = most_rounds();
  const uint64_t slot = slot_bytes(sums + hosts);
  const std::vector<int>& here = layout_->here();
  const uint64_t mine = parts_.bytes;
  const uint64_t largest = *std::ranges::max_element(parts_.in.bytes);
  pipeline(
      largest, slot,
      [&](const Chunk& chunk) {
        uint64_t to = 0;
        for (size_t host = 0; host < hosts; ++host) {
          for (uint64_t round = 0; round < rounds(host, here.size()); ++round) {
            towline_collective_t& made =
                add_parts(TOWLINE_COLLECTIVE_REDUCE_SCATTER_V, host, round, parts_.in, chunk);
            const bool has = round * here.size() + layout_->index < layout_->hosts[host].size();
            made.output = chunk.stage + (host == layout_->mine || !has ? 0 : ++to) * slot;
          }
        }
      },
      [&](const Chunk& chunk) {
        uint32_t from = 0;
        auto to = static_cast<uint32_t>(sums);
        for (size_t host = 0; host < hosts; ++host) {
          if (host == layout_->mine) continue;
          const std::vector<int>& ranks = layout_->hosts[host];
          for (size_t i = layout_->index; i < ranks.size(); i += here.size()) {
            const uint64_t bytes = parts_.in.bytes[static_cast<size_t>(ranks[i])];
            entries_.push_back({ranks[i], true, ++from, clip(bytes, chunk.begin, chunk.bytes)});
          }
          entries_.push_back(
              {ranks[layout_->index % ranks.size()], false, to++, clip(mine, chunk.begin, chunk.bytes)});
        }
        Chunk result = chunk;
        result.bytes = clip(mine, chunk.begin, chunk.bytes);
        return post_entries(HopKind::kExchangeReduce, result, slot, chunk.number);
      },
      [&](const Chunk& chunk) {
        add_move(output_at(chunk.begin), chunk.stage + (sums + hosts - 1) * slot,
                 clip(mine, chunk.begin, chunk.bytes));
      });
}

// Ranks of this host among themselves; then with those of the hosts that are so far ahead and behind, distance by distance.
void HostsSteps::exchange_parts() {
  const size_t hosts = layout_->hosts.size();
  const std::vector<int>& here = layout_->here();
  uint64_t most = 0;  // ranks of a host
  for (const std::vector<int>& ranks : layout_->hosts) most = std::max<uint64_t>(most, ranks.size());
  const uint64_t slot = slot_bytes(2 * most);
  {
    towline_collective_t& made =
        add_parts(TOWLINE_COLLECTIVE_ALL_TO_ALL_V, layout_->mine, 0, parts_.in, {0, UINT64_MAX, nullptr, 0});
    std::vector<uint64_t>& counts = counts_.emplace_back();
    std::vector<void*>& list = lists_.emplace_back();
    for (const int rank : here) {
      counts.push_back(parts_.out.bytes[static_cast<size_t>(rank)] / parts_.element);
      list.push_back(parts_.out.at[static_cast<size_t>(rank)]);
    }
    made.outputs = list.data();
    made.output_counts = counts.data();
  }
  struct Turn {
    const std::vector<int>* to;
    const std::vector<int>* from;
    uint64_t number;  // 0: the sizes; then chunks of parts
  };
  std::vector<Turn> turns;
  for (size_t distance = 1; distance < hosts; ++distance) {
    const std::vector<int>* const to = &layout_->hosts[(layout_->mine + distance) % hosts];
    const std::vector<int>* const from = &layout_->hosts[(layout_->mine + hosts - distance) % hosts];
    uint64_t largest = 0;
    for (const int rank : *to) largest = std::max(largest, parts_.in.bytes[static_cast<size_t>(rank)]);
    for (const int rank : *from) largest = std::max(largest, parts_.out.bytes[static_cast<size_t>(rank)]);
    if (largest >= kMostExchangeBytes)
      fail(Status::kInvalidArgument, "a part of {} has {} bytes: between hosts it has less than {}",
           op_name(call_->op), largest, kMostExchangeBytes);
    for (uint64_t number = 0; number <= (largest + slot - 1) / slot; ++number)
      turns.push_back({to, from, number});
  }
  // each(rank, sends, slot, begin, bytes): what moves in a turn.
  const auto walk = [&](const Turn& turn, auto&& each) {
    const uint64_t begin = turn.number == 0 ? 0 : (turn.number - 1) * slot;
    for (const bool sends : {true, false}) {
      const Parts& parts = sends ? parts_.in : parts_.out;
      uint64_t at = sends ? 0 : most;
      for (const int rank : sends ? *turn.to : *turn.from) {
        const uint64_t bytes = parts.bytes[static_cast<size_t>(rank)];
        each(rank, sends, at++, begin, turn.number == 0 ? bytes : clip(bytes, begin, slot));
      }
    }
  };
  const auto moves = [&](const Chunk& chunk, bool out) {
    const Turn& turn = turns[chunk.begin];
    if (turn.number == 0) return;
    walk(turn, [&](int rank, bool sends, uint64_t at, uint64_t begin, uint64_t bytes) {
      if (bytes == 0 || sends == out) return;
      uint8_t* const stage = chunk.stage + at * slot;
      if (sends)
        add_move(stage, parts_.in.at[static_cast<size_t>(rank)] + begin, bytes);
      else
        add_move(parts_.out.at[static_cast<size_t>(rank)] + begin, stage, bytes);
    });
  };
  pipeline(
      turns.size(), 1, [&](const Chunk& chunk) { moves(chunk, false); },
      [&](const Chunk& chunk) {
        const Turn& turn = turns[chunk.begin];
        walk(turn, [&](int rank, bool sends, uint64_t at, uint64_t, uint64_t bytes) {
          if (turn.number == 0 || bytes != 0)
            entries_.push_back({rank, sends, static_cast<uint32_t>(at), bytes});
        });
        return post_entries(turn.number == 0 ? HopKind::kSizes : HopKind::kExchange, chunk, slot,
                            turn.number);
      },
      [&](const Chunk& chunk) { moves(chunk, true); });
}

// gather and scatter: ranks of the root's host among themselves, and ranks of other hosts with the root. The columns first
// compare what they want, since other ranks exchange nothing with one another.
void HostsSteps::move_with_root() {
  const bool gathers = call_->op == TOWLINE_COLLECTIVE_GATHER;
  std::vector<int> others;  // of other hosts than the root's
  for (size_t rank = 0; rank < layout_->host_of.size(); ++rank)
    if (layout_->host_of[rank] != layout_->host_of[static_cast<size_t>(call_->root)])
      others.push_back(static_cast<int>(rank));
  const uint64_t slot = slot_bytes(kRootSlots);
  if (on_root_host()) {
    towline_collective_t& made = add_call(call_->op, parts_.bytes / parts_.element);
    made.root = root_index();
    made.input = parts_.input;
    made.output = parts_.output;
    if (is_root() && gathers) made.outputs = of_host(parts_.out, layout_->mine, 0);
    if (is_root() && !gathers) made.inputs = of_host(parts_.in, layout_->mine, 0);
  }
  // Turn 0 compares. Then the root deals with so many ranks at a time, all chunks of theirs.
  const uint64_t chunks = (parts_.bytes + slot - 1) / slot;
  const uint64_t groups = is_root() ? (others.size() + kRootSlots - 1) / kRootSlots : on_root_host() ? 0 : 1;
  const auto each = [&](const Chunk& chunk, auto&& body) {
    if (chunk.begin == 0) return;
    const uint64_t begin = (chunk.begin - 1) % chunks * slot;
    const uint64_t bytes = clip(parts_.bytes, begin, slot);
    const uint64_t first = (chunk.begin - 1) / chunks * kRootSlots;
    if (!is_root()) return body(call_->root, 0, begin, bytes);
    for (uint64_t i = first; i < std::min<uint64_t>(first + kRootSlots, others.size()); ++i)
      body(others[i], i - first, begin, bytes);
  };
  const auto data = [&](int rank, uint64_t begin) {
    if (!is_root()) return (gathers ? const_cast<uint8_t*>(parts_.input) : parts_.output) + begin;
    return (gathers ? parts_.out : parts_.in).at[static_cast<size_t>(rank)] + begin;
  };
  const bool sends = gathers != is_root();
  const auto moves = [&](const Chunk& chunk, bool in) {
    each(chunk, [&](int rank, uint64_t at, uint64_t begin, uint64_t bytes) {
      uint8_t* const stage = chunk.stage + at * slot;
      if (in && sends) add_move(stage, data(rank, begin), bytes);
      if (!in && !sends) add_move(data(rank, begin), stage, bytes);
    });
  };
  pipeline(
      1 + groups * chunks, 1, [&](const Chunk& chunk) { moves(chunk, true); },
      [&](const Chunk& chunk) {
        if (chunk.begin == 0)
          return layout_->index < layout_->columns && post(HopKind::kCompare, chunk, 0, 0);
        each(chunk, [&](int rank, uint64_t at, uint64_t, uint64_t bytes) {
          entries_.push_back({rank, sends, static_cast<uint32_t>(at), bytes});
        });
        return post_entries(HopKind::kExchange, chunk, slot, (chunk.begin - 1) % chunks + 1);
      },
      [&](const Chunk& chunk) { moves(chunk, false); });
}

// The root's host first, whose first rank then gives it to the other hosts' first ranks.
void HostsSteps::broadcast_beyond_columns() {
  pipeline(
      parts_.bytes, part_bytes(1),
      [&](const Chunk& chunk) {
        if (!on_root_host()) return;
        towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_BROADCAST, chunk.bytes / parts_.element);
        made.root = root_index();
        if (is_root()) made.input = parts_.input + chunk.begin;
        if (!is_root() || parts_.output != parts_.input) made.output = parts_.output + chunk.begin;
        if (layout_->index == 0) add_move(chunk.stage, parts_.output + chunk.begin, chunk.bytes);
      },
      [&](const Chunk& chunk) {
        if (layout_->index == 0) return post(HopKind::kBroadcast, chunk, chunk.bytes, 0);
        return chunk.number == 0 && layout_->index < layout_->columns && post(HopKind::kCompare, chunk, 0, 0);
      },
      [&](const Chunk& chunk) {
        if (on_root_host()) return;
        towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_BROADCAST, chunk.bytes / parts_.element);
        if (layout_->index == 0) made.input = chunk.stage;
        made.output = parts_.output + chunk.begin;
      });
}

}  // namespace towline::collectives
