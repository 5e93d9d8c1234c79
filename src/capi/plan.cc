// C API: plans, posts and groups.
#include "towline/plan.h"

#include "agent/group.h"
#include "agent/post_plan.h"
#include "agent/released.h"
#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

namespace {

PostPlan& of(towline_plan_t* plan) noexcept { return *reinterpret_cast<PostPlan*>(plan); }
PlannedPost& of(towline_post_t* post) noexcept { return *reinterpret_cast<PlannedPost*>(post); }
const PlannedPost& of(const towline_post_t* post) noexcept {
  return *reinterpret_cast<const PlannedPost*>(post);
}
Group& of(towline_group_t* group) noexcept { return *reinterpret_cast<Group*>(group); }
const Group& of(const towline_group_t* group) noexcept { return *reinterpret_cast<const Group*>(group); }

// Options of posts and groups that have the same names in both.
template <class Options>
PostOptions common_options(Agent& agent, const Options& given) {
  if (given.notice_bytes > TOWLINE_MAX_NOTICE_BYTES)
    fail(Status::kLimitExceeded, "options.notice_bytes is {}; a notice has at most {}", given.notice_bytes,
         TOWLINE_MAX_NOTICE_BYTES);
  if (given.notice_bytes != 0) capi::need(given.notice, "options.notice");
  if (given.priority > TOWLINE_PRIORITY_LATENCY)
    fail(Status::kInvalidArgument, "options.priority is {}; it is TOWLINE_PRIORITY_BULK or _LATENCY",
         given.priority);
  if (given.tag != 0 && given.notice == nullptr)
    fail(Status::kInvalidArgument, "options.tag is {}, but there is no notice that could have it", given.tag);
  const bool queued = given.queue != nullptr || given.queue_completion != 0;
  // In one go: clearing it first takes longer than all the rest here.
  return {.notice = given.notice,
          .notice_bytes = static_cast<uint32_t>(given.notice_bytes),
          .has_notice = given.notice != nullptr,
          .urgent = given.priority == TOWLINE_PRIORITY_LATENCY,
          .unordered = false,
          .tag = given.tag,
          .queue = queued ? &capi::queue_for(agent, given.queue) : nullptr,
          .counter_key = given.counter_key,
          .counter_add = given.counter_add,
          .timeout_ns = 0,
          .deadline_ns = given.deadline_ns,
          .user_data = given.user_data,
          .callback = given.callback,
          .group = nullptr,
          .pace = nullptr};
}

void check_deadline(const Agent& agent, uint64_t deadline_ns) {
  if (deadline_ns == 0 || deadline_ns > agent.now_ns()) return;
  fail(Status::kTimedOut, "the deadline passed {} us ago", (agent.now_ns() - deadline_ns) / 1000);
}

[[gnu::cold]] int32_t refused(const char* function, Status status) noexcept {
  return capi::answer(function, status, take_failure_text());
}

int32_t post_of(PostPlan& plan, const towline_post_options_t& given, PlannedPost** made) {
  PostOptions options = common_options(plan.route().agent(), given);
  options.timeout_ns = plan.timeout_ns();
  options.group = reinterpret_cast<Group*>(given.group);
  check_deadline(plan.route().agent(), given.deadline_ns);
  if (given.stream_kind > TOWLINE_STREAM_UNORDERED)
    fail(Status::kInvalidArgument, "options.stream_kind is {}, which is unknown here", given.stream_kind);
  const bool in_stream = given.stream_kind == TOWLINE_STREAM_CUDA;
  if (!in_stream && given.stream != nullptr)
    fail(Status::kInvalidArgument, "options.stream is set, but options.stream_kind is TOWLINE_STREAM_{}",
         given.stream_kind == TOWLINE_STREAM_NONE ? "NONE" : "UNORDERED");
  options.unordered = given.stream_kind == TOWLINE_STREAM_UNORDERED;
  const PickPair picks = capi::pick_pair(plan.route().op() == TOWLINE_READ, given.from, given.to);
  if (!plan.why_not_whole().empty() && picks.local == nullptr && picks.remote == nullptr)
    fail(Status::kMismatch, "{}", plan.why_not_whole());
  void* const* const stream = in_stream ? &given.stream : nullptr;
  const Status status = plan.post(picks, options, stream, made);
  return is_error(status) ? refused("towline_plan_post", status) : static_cast<int32_t>(status);
}

}  // namespace

extern "C" {

int32_t towline_plan_create(towline_agent_t* agent, towline_block_list_t* from, towline_block_list_t* to,
                            const towline_plan_options_t* options, towline_plan_t** plan) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(plan, "plan");
    Agent& owner = *agent->agent;
    owner.check_usable();
    capi::Sides sides = capi::sides_of(owner, from, to);
    const auto given = capi::take_options(options, "options");
    const uint64_t timeout_ns = given.timeout_ns != 0 ? given.timeout_ns : owner.default_timeout_ns();
    auto made = std::make_unique<PostPlan>(agent->agent, sides.op(), std::move(sides.local),
                                           std::move(sides.remote), timeout_ns);
    if (given.recut == 0) made->refuse_whole(capi::check_layouts(*from, *to));
    made->establish(given.backend == nullptr ? "" : given.backend, LateDeadline::in(owner, timeout_ns),
                    given.usual_bytes);
    *plan = reinterpret_cast<towline_plan_t*>(made.release());
    return Status::kOk;
  });
}

int32_t towline_plan_route(towline_plan_t* plan, char* json, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(plan, "plan");
    const std::string text = of(plan).route_text();
    return capi::give(text.data(), text.size(), true, json, capacity, needed);
  });
}

int32_t towline_plan_backend(towline_plan_t* plan, char* text, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(plan, "plan");
    const std::string name = of(plan).backend_name();
    return capi::give(name.data(), name.size(), true, text, capacity, needed);
  });
}

uint32_t towline_plan_streams(towline_plan_t* plan) {
  uint32_t streams = 0;
  if (plan == nullptr) return streams;
  (void)capi::guard(__func__, [&] {
    if (of(plan).needs_stream()) streams |= TOWLINE_PLAN_NEEDS_STREAM;
    if (of(plan).takes_stream()) streams |= TOWLINE_PLAN_TAKES_STREAM;
    return Status::kOk;
  });
  return streams;
}

uint32_t towline_plan_in_use(towline_plan_t* plan) { return plan == nullptr ? 0 : of(plan).in_use(); }

int32_t towline_plan_destroy(towline_plan_t* plan, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    if (plan == nullptr) return Status::kOk;
    std::string why;
    const Status status = of(plan).retire(timeout_ns, why);
    if (status == Status::kForked) return Status::kOk;  // the parent's copy lives on
    if (status != Status::kOk) fail(status, "{}", why);
    delete &of(plan);
    return Status::kOk;
  });
}

void towline_plan_release(towline_plan_t* plan) {
  if (plan != nullptr) release(of(plan));
}

// A caller of another version has a struct of another size; the usual one is used as it lies.
int32_t towline_plan_post(towline_plan_t* plan, const towline_post_options_t* options,
                          towline_post_t** post) {
  return capi::guard(__func__, [&] {
    capi::need(plan, "plan");
    auto** const made = reinterpret_cast<PlannedPost**>(post);
    if (options != nullptr && options->struct_size == sizeof *options) [[likely]]
      return post_of(of(plan), *options, made);
    return post_of(of(plan), capi::take_options(options, "options"), made);
  });
}

int32_t towline_post_poll(towline_post_t* post) {
  if (post == nullptr) return capi::refuse_null(__func__, "post");
  return static_cast<int32_t>(of(post).poll());
}

int32_t towline_post_wait(towline_post_t* post, uint64_t timeout_ns) {
  if (post == nullptr) return capi::refuse_null(__func__, "post");
  return static_cast<int32_t>(of(post).wait(timeout_ns));
}

int32_t towline_post_wait_fenced(towline_post_t* post, uint32_t fences, uint64_t timeout_ns) {
  if (post == nullptr) return capi::refuse_null(__func__, "post");
  const Status status = of(post).wait_fenced(fences, timeout_ns);
  return capi::answer(__func__, status, status == Status::kUnsupported ? of(post).no_fence() : std::string());
}

int32_t towline_post_cancel(towline_post_t* post) {
  if (post == nullptr) return capi::refuse_null(__func__, "post");
  return static_cast<int32_t>(of(post).cancel());
}

int32_t towline_post_result(const towline_post_t* post, towline_result_t* result) {
  return capi::guard(__func__, [&] {
    capi::need(post, "post");
    capi::need(result, "result");
    towline_result_t whole = {};
    whole.struct_size = result->struct_size;
    of(post).result(whole);
    std::memcpy(result, &whole, std::min(result->struct_size, sizeof whole));
    return Status::kOk;
  });
}

int32_t towline_post_error(const towline_post_t* post, char* text, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(post, "post");
    const std::string why = of(post).failure();
    return capi::give(why.data(), why.size(), true, text, capacity, needed);
  });
}

int32_t towline_post_backend(const towline_post_t* post, char* text, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(post, "post");
    const std::string name = of(post).backend_name();
    return capi::give(name.data(), name.size(), true, text, capacity, needed);
  });
}

void towline_post_release(towline_post_t* post) {
  if (post != nullptr) of(post).release();
}

int32_t towline_group_create(towline_agent_t* agent, const towline_group_options_t* options,
                             towline_group_t** group) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(group, "group");
    agent->agent->check_usable();
    const auto given = capi::take_options(options, "options");
    check_deadline(*agent->agent, given.deadline_ns);
    *group =
        reinterpret_cast<towline_group_t*>(Group::create(agent->agent, common_options(*agent->agent, given)));
    return Status::kOk;
  });
}

int32_t towline_group_close(towline_group_t* group) {
  if (group == nullptr) return capi::refuse_null(__func__, "group");
  const Status status = of(group).close();
  return is_error(status) ? refused(__func__, status) : static_cast<int32_t>(status);
}

int32_t towline_group_poll(towline_group_t* group) {
  if (group == nullptr) return capi::refuse_null(__func__, "group");
  return static_cast<int32_t>(of(group).poll());
}

int32_t towline_group_wait(towline_group_t* group, uint64_t timeout_ns) {
  if (group == nullptr) return capi::refuse_null(__func__, "group");
  return static_cast<int32_t>(of(group).wait(timeout_ns));
}

int32_t towline_group_wait_fenced(towline_group_t* group, uint32_t fences, uint64_t timeout_ns) {
  if (group == nullptr) return capi::refuse_null(__func__, "group");
  const Status status = of(group).wait_fenced(fences, timeout_ns);
  return capi::answer(__func__, status,
                      status == Status::kUnsupported ? of(group).no_fence() : std::string());
}

int32_t towline_group_cancel(towline_group_t* group) {
  if (group == nullptr) return capi::refuse_null(__func__, "group");
  return static_cast<int32_t>(of(group).cancel());
}

int32_t towline_group_result(const towline_group_t* group, towline_group_result_t* result) {
  return capi::guard(__func__, [&] {
    capi::need(group, "group");
    capi::need(result, "result");
    towline_group_result_t whole = {};
    whole.struct_size = result->struct_size;
    of(group).result(whole);
    std::memcpy(result, &whole, std::min(result->struct_size, sizeof whole));
    return Status::kOk;
  });
}

int32_t towline_group_error(const towline_group_t* group, char* text, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(group, "group");
    const std::string why = of(group).failure();
    return capi::give(why.data(), why.size(), true, text, capacity, needed);
  });
}

void towline_group_release(towline_group_t* group) {
  if (group != nullptr) of(group).release();
}

}  // extern "C"
