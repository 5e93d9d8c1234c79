// Posts' memory for code on an accelerator (gpu.h).
#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "agent/agent.h"
#include "agent/fork_generation.h"
#include "agent/link.h"
#include "agent/post.h"
#include "agent/worker.h"
#include "towline/plugin/cursor.hpp"

namespace towline {

namespace {

using Deltas = std::vector<uint64_t>;  // what to add to a region's addresses

// The blocks' own addresses, moved by the distance of the region that each lies in.
void write_addresses(const towline_plan& plan, const Deltas& local_deltas, const Deltas& remote_deltas,
                     uint64_t* local, uint64_t* remote) {
  plugin::detail::ListReader near{*plan.local};
  plugin::detail::ListReader far{*plan.remote};
  for (uint64_t r = 0; r < plan.run_count; ++r) {
    const towline_run& run = plan.runs[r];
    for (uint64_t i = 0; i < run.count; ++i) {
      towline_segment block = {};
      block.local = run.local_block + i * plan.local_step;
      block.remote = run.remote_block + i * plan.remote_step;
      near.resolve<&towline_segment::local, &towline_segment::local_region>(&block, 1);
      far.resolve<&towline_segment::remote, &towline_segment::remote_region>(&block, 1);
      *local++ = block.local + local_deltas[block.local_region];
      *remote++ = block.remote + remote_deltas[block.remote_region];
    }
  }
}

}  // namespace

// Under the agent's mutex for details.
Post::Held& Post::held() {
  if (held_ == nullptr) held_ = std::make_unique<Held>();
  return *held_;
}

Status Post::view(uint64_t* from, uint64_t* to, size_t count) noexcept try {
  take_failure_text();
  if (fork_generation_ != fork_generation()) return Status::kForked;
  if (count != plan_.view().blocks) {
    set_failure_text(fmt::format("there are {} blocks, not {}", plan_.view().blocks, count));
    return Status::kInvalidArgument;
  }
  if (!take(kBusy)) return Status::kBusy;
  const bool reads = route_.op() == TOWLINE_READ;
  const Status status = view_taken(reads ? to : from, reads ? from : to);
  phase_.store(kReady, std::memory_order_release);
  return status;
} catch (const std::bad_alloc&) {
  return Status::kOutOfMemory;
}

Status Post::view_taken(uint64_t* local, uint64_t* remote) try {
  if (staged_ != nullptr || backend_->data->view == nullptr || part_count_ != 1) {
    set_failure_text(
        staged_ != nullptr ? "bytes that are staged on their way have no address for code on a GPU"
        : part_count_ != 1
            ? "the transfer is split over several workers: make it with workers = 1"
            : "backend '" + backend_->name + "' gives code on a GPU no addresses: ask for \"cuda\"");
    return Status::kUnsupported;
  }
  Part& part = parts_[0];
  const Worker::Guard guard(*part.worker);
  if (const int32_t gate = gate_.load(std::memory_order_seq_cst); gate < 0) return refusal_at(gate);
  if (!usable(part)) {
    const uint64_t deadline_ns = Deadline::after(agent().now_ns(), options_.timeout_ns).ns();
    const Status status = establish_part(part, deadline_ns);
    if (status != Status::kOk) return status == Status::kInProgress ? Status::kAgain : status;
  }
  const towline_plan& plan = plan_.view();
  Deltas local_deltas(plan.local->region_count);
  Deltas remote_deltas(plan.remote->region_count);
  Held* held = nullptr;
  {
    const std::lock_guard lock(agent().transfer_details_mutex());
    held = &this->held();
  }
  held->views.reserve(held->views.size() + 1);
  towline_view* view = nullptr;
  const auto status = static_cast<Status>(
      backend_->data->view(part.prepared, local_deltas.data(), remote_deltas.data(), &view));
  if (status != Status::kOk) return status;
  held->views.emplace_back(view, backend_->data->view_forget);
  write_addresses(plan, local_deltas, remote_deltas, local, remote);
  return Status::kOk;
} catch (const std::bad_alloc&) {
  return Status::kOutOfMemory;
}

}  // namespace towline
