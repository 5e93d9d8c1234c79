#include "collectives/hosts_steps.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "collectives/calls/norm.h"
#include "collectives/calls/types.h"
#include "collectives/hosts_pipeline.h"

namespace towline::collectives {
namespace {

// A rank of this host waits for a hop from another, whose ranks may be waiting for one that stands still. They see which
// one it is, so their time has to end first. The kernels that wait for hops give them longer than this (gpu_steps.cc).
constexpr uint64_t kHopGraceNs = kSecondNs;

// What ranks must agree on beyond an all_reduce. Columns compare it, in a header's place for roots, which all_reduce has not.
int32_t agreement_of(const towline_collective_norm_t& norm) {
  uint64_t hash = norm.width;
  hash = hash * 0x9e3779b97f4a7c15 + std::bit_cast<uint32_t>(norm.epsilon);
  hash = hash * 0x9e3779b97f4a7c15 + (norm.residual != nullptr ? 1 : 0) + (norm.weight != nullptr ? 2 : 0);
  return static_cast<int32_t>(hash >> 33) | 1;
}

}  // namespace

void HostsSteps::begin(const HostsLayout& layout, const towline_collective_t& call, uint64_t number,
                       uint64_t timeout_ns) {
  layout_ = &layout;
  call_ = &call;
  timeout_ns_ = timeout_ns;
  steps_.clear();
  calls_.clear();
  counts_.clear();
  lists_.clear();
  const auto size = static_cast<int>(layout.host_of.size());
  take_apart(call, layout.here()[layout.index], size, number, Deadline::never(), parts_);
}

const std::vector<towline_collective_step_t>& HostsSteps::cut_norm(const HostsLayout& layout,
                                                                   const towline_collective_norm_t& norm,
                                                                   uint64_t number, uint64_t timeout_ns) {
  norm_call_ = all_reduce_of(norm);
  begin(layout, norm_call_, number, timeout_ns);
  parts_.header.root = agreement_of(norm);
  all_reduce();
  towline_collective_step_t& step = steps_.emplace_back();
  step.kind = TOWLINE_STEP_NORM;
  step.from = &norm;
  return steps_;
}

const std::vector<towline_collective_step_t>& HostsSteps::cut(const HostsLayout& layout,
                                                              const towline_collective_t& call,
                                                              uint64_t number, uint64_t timeout_ns) {
  begin(layout, call, number, timeout_ns);
  switch (call.op) {
    case TOWLINE_COLLECTIVE_BARRIER:
      barrier();
      break;
    case TOWLINE_COLLECTIVE_ALL_REDUCE:
      all_reduce();
      break;
    case TOWLINE_COLLECTIVE_BROADCAST:
      layout.index_of[static_cast<size_t>(call.root)] < layout.columns ? broadcast()
                                                                       : broadcast_beyond_columns();
      break;
    case TOWLINE_COLLECTIVE_ALL_GATHER:
      layout.even ? all_gather() : gather_parts();
      break;
    case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      gather_parts();
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
      layout.even ? reduce_scatter() : reduce_parts();
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
      reduce_parts();
      break;
    case TOWLINE_COLLECTIVE_REDUCE:
      reduce();
      break;
    case TOWLINE_COLLECTIVE_GATHER:
      layout.even ? gather() : move_with_root();
      break;
    case TOWLINE_COLLECTIVE_SCATTER:
      layout.even ? scatter() : move_with_root();
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL:
      layout.even ? all_to_all() : exchange_parts();
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
      exchange_parts();
      break;
    default:
      fail(Status::kUnsupported, "{} among GPUs of several hosts: only with NCCL (collectives.on_gpu)",
           op_name(call.op));
  }
  return steps_;
}

// ---- Making steps

towline_collective_t& HostsSteps::add_call(uint32_t op, uint64_t count) {
  towline_collective_t& made = calls_.emplace_back();
  made.struct_size = sizeof made;
  made.op = op;
  made.datatype = call_->datatype;
  made.reduction = call_->reduction == TOWLINE_REDUCE_AVG ? uint32_t{TOWLINE_REDUCE_SUM} : call_->reduction;
  made.factor = call_->factor;
  made.count = count;
  towline_collective_step_t& step = steps_.emplace_back();
  step.kind = TOWLINE_STEP_CALL;
  step.call = &made;
  return made;
}

void HostsSteps::add_move(void* to, const void* from, uint64_t bytes) {
  if (bytes == 0 || to == from) return;
  towline_collective_step_t& step = steps_.emplace_back();
  step.kind = TOWLINE_STEP_MOVE;
  step.to = to;
  step.from = from;
  step.bytes = bytes;
}

Hop HostsSteps::hop_of(HopKind kind, const Chunk& chunk, uint64_t bytes, uint64_t stride) const {
  Hop hop = {};
  hop.kind = kind;
  hop.step = chunk.number;
  hop.header = parts_.header;
  hop.header.step = static_cast<uint8_t>(chunk.number);
  hop.offset = static_cast<uint64_t>(chunk.stage - layout_->staging);
  hop.bytes = bytes;
  hop.stride = stride;
  hop.timeout_ns = timeout_ns_ > UINT64_MAX - kHopGraceNs ? UINT64_MAX : timeout_ns_ + kHopGraceNs;
  hop.datatype = call_->datatype;
  hop.reduction =
      call_->reduction == TOWLINE_REDUCE_PREMUL_SUM ? uint32_t{TOWLINE_REDUCE_SUM} : call_->reduction;
  hop.divisor = static_cast<uint32_t>(layout_->host_of.size());
  if (has_root(call_->op))
    hop.root = static_cast<uint32_t>(layout_->host_of[static_cast<size_t>(call_->root)]);
  return hop;
}

void HostsSteps::add_post(const Hop& hop) {
  towline_collective_step_t& step = steps_.emplace_back();
  step.kind = TOWLINE_STEP_POST;
  std::memcpy(step.words, &hop, sizeof hop);
}

bool HostsSteps::post(HopKind kind, const Chunk& chunk, uint64_t bytes, uint64_t stride) {
  add_post(hop_of(kind, chunk, bytes, stride));
  return true;
}

// The largest part such that so many of them fit into a half: whole elements.
uint64_t HostsSteps::part_bytes(uint64_t parts) const noexcept {
  return layout_->half / parts / kStagingLine * kStagingLine;
}

// How many elements of so many bytes each of this host's ranks gets: only ranks of columns get some, in whole lines.
std::vector<uint64_t>& HostsSteps::shares(uint64_t bytes) {
  const uint64_t elements = bytes / parts_.element;
  const uint64_t line = kStagingLine / parts_.element;
  const uint64_t share = ((elements + layout_->columns - 1) / layout_->columns + line - 1) / line * line;
  std::vector<uint64_t>& counts = counts_.emplace_back();
  for (size_t i = 0; i < layout_->here().size(); ++i) {
    const uint64_t begin = std::min(i * share, elements);
    counts.push_back(i < layout_->columns ? std::min(share, elements - begin) : 0);
  }
  return counts;
}

// Each of this host's ranks reduces its share of the host's inputs into the stage.
void HostsSteps::reduce_shares(const Chunk& chunk) {
  const std::vector<uint64_t>& counts = shares(chunk.bytes);
  towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_REDUCE_SCATTER_V, counts[layout_->index]);
  made.input = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(call_->input) + chunk.begin);
  made.output = chunk.stage;
  made.input_counts = counts.data();
}

bool HostsSteps::post_share(HopKind kind, const Chunk& chunk) {
  return layout_->index < layout_->columns &&
         post(kind, chunk, counts_.back()[layout_->index] * parts_.element, 0);
}

void HostsSteps::gather_shares(const Chunk& chunk, void* output) {
  const std::vector<uint64_t>& counts = counts_[chunk.number];
  towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_ALL_GATHER_V, counts[layout_->index]);
  made.input = chunk.stage;
  made.output = output;
  made.output_counts = counts.data();
}

// Of each rank of that host.
void** HostsSteps::of_host(const Parts& parts, size_t host, uint64_t begin) {
  std::vector<void*>& made = lists_.emplace_back();
  for (const int rank : layout_->hosts[host]) made.push_back(parts.at[static_cast<size_t>(rank)] + begin);
  return made.data();
}

// ---- Operations

void HostsSteps::barrier() {
  pipeline(
      0, kStagingLine, [&](const Chunk&) { add_call(TOWLINE_COLLECTIVE_BARRIER, 0); },
      [&](const Chunk& chunk) { return post(HopKind::kBarrier, chunk, 0, 0); },
      [&](const Chunk&) { add_call(TOWLINE_COLLECTIVE_BARRIER, 0); });
}

// Each rank reduces its column's share of this host's inputs, columns reduce those, and ranks of a host share the results.
void HostsSteps::all_reduce() {
  pipeline(
      parts_.bytes, part_bytes(1) * layout_->columns, [&](const Chunk& chunk) { reduce_shares(chunk); },
      [&](const Chunk& chunk) { return post_share(HopKind::kAllReduce, chunk); },
      [&](const Chunk& chunk) { gather_shares(chunk, output_at(chunk.begin)); });
}

// Columns exchange their parts; then each rank has one of every host, which it gives to the ranks of its own.
void HostsSteps::all_gather() {
  const uint64_t stride = part_bytes(layout_->hosts.size());
  pipeline(
      parts_.bytes, stride,
      [&](const Chunk& chunk) {
        add_move(chunk.stage + layout_->mine * stride, parts_.input + chunk.begin, chunk.bytes);
      },
      [&](const Chunk& chunk) { return post(HopKind::kAllGather, chunk, chunk.bytes, stride); },
      [&](const Chunk& chunk) {
        for (size_t host = 0; host < layout_->hosts.size(); ++host) {
          towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_ALL_GATHER, chunk.bytes / parts_.element);
          made.input = chunk.stage + host * stride;
          made.outputs = of_host(parts_.out, host, chunk.begin);
        }
      });
}

// On each host, each rank reduces its column's parts, one part of every host. Then the ranks of a column reduce those.
void HostsSteps::reduce_scatter() {
  const uint64_t stride = part_bytes(layout_->hosts.size() + 1);
  pipeline(
      parts_.bytes, stride,
      [&](const Chunk& chunk) {
        for (size_t host = 0; host < layout_->hosts.size(); ++host) {
          towline_collective_t& made =
              add_call(TOWLINE_COLLECTIVE_REDUCE_SCATTER, chunk.bytes / parts_.element);
          made.inputs = of_host(parts_.in, host, chunk.begin);
          made.output = chunk.stage + host * stride;
        }
      },
      [&](const Chunk& chunk) { return post(HopKind::kReduceScatter, chunk, chunk.bytes, stride); },
      [&](const Chunk& chunk) {
        add_move(parts_.output + chunk.begin, chunk.stage + layout_->hosts.size() * stride, chunk.bytes);
      });
}

// Through the root's column to a rank of every host, which gives it to the others there.
void HostsSteps::broadcast() {
  const size_t index = layout_->index_of[static_cast<size_t>(call_->root)];
  pipeline(
      parts_.bytes, part_bytes(1),
      [&](const Chunk& chunk) {
        if (is_root()) add_move(chunk.stage, parts_.input + chunk.begin, chunk.bytes);
      },
      [&](const Chunk& chunk) {
        if (layout_->index == index) return post(HopKind::kBroadcast, chunk, chunk.bytes, 0);
        // Ranks that name a root of another column are noticed there.
        return chunk.number == 0 && layout_->index < layout_->columns && post(HopKind::kCompare, chunk, 0, 0);
      },
      [&](const Chunk& chunk) {
        towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_BROADCAST, chunk.bytes / parts_.element);
        made.root = root_index();
        if (layout_->index == index) made.input = chunk.stage;
        if (!is_root() || parts_.output != parts_.input) made.output = parts_.output + chunk.begin;
      });
}

// As all_reduce, to the root's host; its other ranks gather the results in staging, where nobody reads them.
void HostsSteps::reduce() {
  const uint64_t half = part_bytes(2);
  pipeline(
      parts_.bytes, half, [&](const Chunk& chunk) { reduce_shares(chunk); },
      [&](const Chunk& chunk) { return post_share(HopKind::kReduce, chunk); },
      [&](const Chunk& chunk) {
        if (on_root_host()) gather_shares(chunk, is_root() ? output_at(chunk.begin) : chunk.stage + half);
      });
}

// Columns gather on the root's host; then its ranks give the root one part of every host.
void HostsSteps::gather() {
  const uint64_t stride = part_bytes(layout_->hosts.size());
  pipeline(
      parts_.bytes, stride,
      [&](const Chunk& chunk) {
        add_move(chunk.stage + layout_->mine * stride, parts_.input + chunk.begin, chunk.bytes);
      },
      [&](const Chunk& chunk) { return post(HopKind::kGather, chunk, chunk.bytes, stride); },
      [&](const Chunk& chunk) {
        for (size_t host = 0; host < layout_->hosts.size() && on_root_host(); ++host) {
          towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_GATHER, chunk.bytes / parts_.element);
          made.root = root_index();
          made.input = chunk.stage + host * stride;
          if (!is_root()) continue;
          made.outputs = of_host(parts_.out, host, chunk.begin);
        }
      });
}

// The root gives each rank of its host the parts of a column, which that rank scatters among the hosts.
void HostsSteps::scatter() {
  const uint64_t stride = part_bytes(layout_->hosts.size() + 1);
  pipeline(
      parts_.bytes, stride,
      [&](const Chunk& chunk) {
        for (size_t host = 0; host < layout_->hosts.size() && on_root_host(); ++host) {
          towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_SCATTER, chunk.bytes / parts_.element);
          made.root = root_index();
          made.output = chunk.stage + host * stride;
          if (!is_root()) continue;
          made.inputs = of_host(parts_.in, host, chunk.begin);
        }
      },
      [&](const Chunk& chunk) { return post(HopKind::kScatter, chunk, chunk.bytes, stride); },
      [&](const Chunk& chunk) {
        add_move(parts_.output + chunk.begin, chunk.stage + layout_->hosts.size() * stride, chunk.bytes);
      });
}

// Ranks of a host give each other what is for the other's column, column by column of every host. So each has what its
// column's ranks get from this host, and the column exchanges that.
void HostsSteps::all_to_all() {
  const size_t hosts = layout_->hosts.size();
  const uint64_t part = part_bytes(2 * hosts * layout_->columns);
  const uint64_t stride = part * layout_->columns;
  pipeline(
      parts_.bytes, part,
      [&](const Chunk& chunk) {
        for (size_t host = 0; host < hosts; ++host) {
          std::vector<void*>& outputs = lists_.emplace_back();
          for (size_t i = 0; i < layout_->columns; ++i)
            outputs.push_back(chunk.stage + host * stride + i * chunk.bytes);
          towline_collective_t& made = add_call(TOWLINE_COLLECTIVE_ALL_TO_ALL, chunk.bytes / parts_.element);
          made.inputs = of_host(parts_.in, host, chunk.begin);
          made.outputs = outputs.data();
        }
      },
      [&](const Chunk& chunk) {
        return post(HopKind::kAllToAll, chunk, layout_->columns * chunk.bytes, stride);
      },
      [&](const Chunk& chunk) {
        for (size_t host = 0; host < hosts; ++host)
          for (size_t i = 0; i < layout_->columns; ++i)
            add_move(parts_.out.at[static_cast<size_t>(layout_->hosts[host][i])] + chunk.begin,
                     chunk.stage + (hosts + host) * stride + i * chunk.bytes, chunk.bytes);
      });
}

}  // namespace towline::collectives
