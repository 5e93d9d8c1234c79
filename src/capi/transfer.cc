// C API: transfers.
#include "agent/released.h"
#include "base/sync/wake_path.h"
#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

namespace {

Transfer& of(towline_transfer_t* transfer) noexcept { return *reinterpret_cast<Transfer*>(transfer); }
const Transfer& of(const towline_transfer_t* transfer) noexcept {
  return *reinterpret_cast<const Transfer*>(transfer);
}

PostOptions post_options(Agent& agent, const towline_transfer_options_t& given) {
  if (given.notice_bytes > TOWLINE_MAX_NOTICE_BYTES) {
    fail(Status::kLimitExceeded, "options.notice_bytes is {}; a notice has at most {}", given.notice_bytes,
         TOWLINE_MAX_NOTICE_BYTES);
  }
  if (given.notice_bytes != 0) capi::need(given.notice, "options.notice");
  // In one go: clearing it first takes longer than all the rest here.
  return {.notice = given.notice,
          .notice_bytes = static_cast<uint32_t>(given.notice_bytes),
          .has_notice = given.notice != nullptr,
          .urgent = false,
          .unordered = false,
          .tag = 0,
          .queue = given.queue_completion != 0 ? &agent.own_queue() : nullptr,
          .counter_key = given.counter_key,
          .counter_add = given.counter_add,
          .timeout_ns = given.timeout_ns,
          .deadline_ns = 0,
          .user_data = given.user_data,
          .callback = given.callback,
          .group = nullptr,
          .pace = nullptr};
}

std::unique_ptr<Transfer> make(const std::shared_ptr<Agent>& agent, towline_block_list_t* from,
                               towline_block_list_t* to, const towline_transfer_options_t& given) {
  Agent& owner = *agent;
  capi::Sides sides = capi::sides_of(owner, from, to);
  const PickPair picks = capi::pick_pair(sides.reads, given.from, given.to);
  if (const std::string why = capi::check_layouts(*from, *to);
      !why.empty() && picks.local == nullptr && picks.remote == nullptr)
    fail(Status::kMismatch, "{}", why);
  const PostOptions wanted = post_options(owner, given);
  const uint64_t timeout_ns = wanted.timeout_ns != 0 ? wanted.timeout_ns : owner.default_timeout_ns();
  Plan plan =
      Plan::compile(sides.local->resolved(), picks.local, sides.remote->resolved(), picks.remote, sides.op());
  auto made = std::make_unique<Transfer>(agent, sides.op(), std::move(sides.local), std::move(sides.remote),
                                         std::move(plan), wanted, given.workers);
  owner.add_post(*made);
  try {
    made->establish(given.backend == nullptr ? "" : given.backend, LateDeadline::in(owner, timeout_ns));
  } catch (...) {
    owner.remove_post(*made);
    throw;
  }
  return made;
}

// A parent's transfer is not asked: a thread that the child does not have may have held its locks.
[[gnu::cold]] int32_t refused(const char* function, const Transfer& transfer, Status status) noexcept {
  if (status == Status::kAgain || status == Status::kForked) return capi::answer(function, status);
  return capi::answer(function, status, transfer.refusal_of(status));
}

int32_t ended(const char* function, const Transfer& transfer, Status status) noexcept {
  if (!is_error(status) || status == Status::kNotYet) [[likely]]
    return static_cast<int32_t>(status);
  return capi::answer(function, status,
                      status == Status::kForked ? std::string() : transfer.whole_failure_of(status));
}

}  // namespace

extern "C" {

int32_t towline_transfer_create(towline_agent_t* agent, towline_block_list_t* from, towline_block_list_t* to,
                                const towline_transfer_options_t* options, towline_transfer_t** transfer) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(transfer, "transfer");
    agent->agent->check_usable();
    // Options of this version are used where they lie.
    auto made = options != nullptr && options->struct_size == sizeof *options
                    ? make(agent->agent, from, to, *options)
                    : make(agent->agent, from, to, capi::take_options(options, "options"));
    *transfer = reinterpret_cast<towline_transfer_t*>(made.release());
    return Status::kOk;
  });
}

TOWLINE_WAKE_PATH int32_t towline_transfer_post(towline_transfer_t* transfer) {
  if (transfer == nullptr) [[unlikely]]
    return capi::refuse_null(__func__, "transfer");
  const Status status = of(transfer).post();
  if (!is_error(status)) [[likely]]
    return static_cast<int32_t>(status);
  return refused(__func__, of(transfer), status);
}

int32_t towline_transfer_poll(towline_transfer_t* transfer) {
  if (transfer == nullptr) [[unlikely]]
    return capi::refuse_null(__func__, "transfer");
  return ended(__func__, of(transfer), of(transfer).poll());
}

int32_t towline_transfer_wait(towline_transfer_t* transfer, uint64_t timeout_ns) {
  if (transfer == nullptr) return capi::refuse_null(__func__, "transfer");
  return ended(__func__, of(transfer), of(transfer).wait(timeout_ns));
}

int32_t towline_transfer_wait_fenced(towline_transfer_t* transfer, uint32_t fences, uint64_t timeout_ns) {
  if (transfer == nullptr) return capi::refuse_null(__func__, "transfer");
  const Status status = of(transfer).wait_fenced(fences, timeout_ns);
  return capi::answer(__func__, status,
                      status == Status::kUnsupported ? of(transfer).no_fence() : std::string());
}

int32_t towline_transfer_cancel(towline_transfer_t* transfer) {
  if (transfer == nullptr) return capi::refuse_null(__func__, "transfer");
  return capi::answer(__func__, of(transfer).cancel());
}

int32_t towline_transfer_set_notice(towline_transfer_t* transfer, const void* notice, size_t bytes) {
  return capi::guard(__func__, [&] {
    capi::need(transfer, "transfer");
    if (bytes != 0) capi::need(notice, "notice");
    return of(transfer).set_notice(notice, bytes);
  });
}

int32_t towline_transfer_result(const towline_transfer_t* transfer, towline_result_t* result) {
  return capi::guard(__func__, [&] {
    capi::need(transfer, "transfer");
    capi::need(result, "result");
    towline_result_t whole = {};
    whole.struct_size = result->struct_size;
    of(transfer).result(whole);
    std::memcpy(result, &whole, std::min(result->struct_size, sizeof whole));
    return Status::kOk;
  });
}

int32_t towline_transfer_route(const towline_transfer_t* transfer, char* json, size_t capacity,
                               size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(transfer, "transfer");
    const std::string text = of(transfer).route();
    return capi::give(text.data(), text.size(), true, json, capacity, needed);
  });
}

int32_t towline_transfer_destroy(towline_transfer_t* transfer, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    if (transfer == nullptr) return Status::kOk;
    const Status status = of(transfer).retire(timeout_ns);
    if (status == Status::kNotYet) {
      fail(status, "the transfer is not fenced yet: its memory may still be in use; call again");
    }
    if (status == Status::kForked) return Status::kOk;  // the parent's copy lives on
    of(transfer).agent().remove_post(of(transfer));
    delete &of(transfer);
    return Status::kOk;
  });
}

void towline_transfer_release(towline_transfer_t* transfer) {
  if (transfer != nullptr) release(of(transfer));
}

}  // extern "C"
