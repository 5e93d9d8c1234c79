// Plans, posts and groups. Plan.post() is the hot path: one call of the C API, and an object for its handle.
#include <nanobind/stl/string.h>
#include <towline/pace.h>
#include <towline/plan.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arrays.h"

namespace towline::python {

namespace {

constexpr uint64_t kQuickBytes = 64 << 10;  // the most that is posted with the GIL held

struct Plan {
  nb::object agent;
  nb::object from;
  nb::object to;
  towline_plan_t* native = nullptr;
  uint64_t from_blocks = 0;
  uint64_t to_blocks = 0;
  uint64_t timeout = 0;  // 0: the agent's default
  int64_t gpu = -1;      // whose memory of this agent it moves: posts are in a stream, or unordered; -1: none

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() { towline_plan_release(native); }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    Py_VISIT(from.ptr());
    Py_VISIT(to.ptr());
    return 0;
  }
};

struct Post {
  nb::object plan;
  towline_post_t* native = nullptr;
  uint64_t bytes = 0;
  uint64_t id = 0;
  bool awaitable = false;
  bool ended = false;     // its outcome was seen
  bool looked = false;    // somebody cared for its outcome
  bool in_group = false;  // its outcome is the group's

  Post() = default;
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;
  ~Post() {
    if (native != nullptr && forgotten()) warn();
    towline_post_release(native);
  }
  // Nobody has asked for its outcome, which was not known when it was posted.
  [[nodiscard]] bool forgotten() const noexcept { return !looked && !in_group; }
  static void warn() noexcept {
    if (interpreter_ends()) return;
    const nb::error_scope kept;  // an exception may be under way
    if (PyErr_WarnEx(PyExc_RuntimeWarning,
                     "a copy was started, and nobody awaited it or asked for its result", 1) != 0)
      PyErr_WriteUnraisable(nullptr);
  }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(plan.ptr());
    return 0;
  }
};

struct Group {
  nb::object agent;
  nb::list plans;  // of its members: a plan that ends cancels its posts
  towline_group_t* native = nullptr;
  uint64_t id = 0;
  bool awaitable = false;

  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() { towline_group_release(native); }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    Py_VISIT(plans.ptr());
    return 0;
  }
};

bool in_event_loop() {
  static PyObject* const name = PyUnicode_InternFromString("asyncio.events");
  const nb::object events = nb::steal(PyImport_GetModule(name));
  if (!events.is_valid()) {
    PyErr_Clear();
    return false;
  }
  return !events.attr("_get_running_loop")().is_none();
}

uint32_t priority_of(nb::handle name) {
  if (PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), "bulk") == 0)
    return TOWLINE_PRIORITY_BULK;
  if (PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), "latency") == 0)
    return TOWLINE_PRIORITY_LATENCY;
  raise(TOWLINE_INVALID_ARGUMENT, "priority is 'bulk' or 'latency'");
}

// The options of posts and groups that have the same names in both; holds the notice.
template <class Options>
void set_common(Options& options, std::string& its_notice, nb::handle notice, nb::handle counter,
                nb::handle timeout, nb::handle priority, nb::handle tag) {
  options.tag = unsigned_integer(tag, "tag");
  if (!notice.is_none()) {
    const BytesView bytes(notice);
    its_notice.assign(static_cast<const char*>(bytes.data()), bytes.size());
    options.notice = its_notice.data();
    options.notice_bytes = its_notice.size();
  }
  if (!counter.is_none()) {
    options.counter_add = 1;
    if (PyTuple_Check(counter.ptr())) {
      if (PyTuple_GET_SIZE(counter.ptr()) != 2)
        raise(TOWLINE_INVALID_ARGUMENT, "counter is a key or (key, amount)");
      options.counter_key = unsigned_integer(counter[0], "a counter's key");
      options.counter_add = unsigned_integer(counter[1], "a counter's amount");
    } else {
      options.counter_key = unsigned_integer(counter, "counter");
    }
  }
  options.deadline_ns = deadline_ns(timeout);
  options.priority = priority_of(priority);
}

template <class Handle, class Ask>
std::string text_of(Handle* handle, Ask ask) {
  std::vector<char> room(1024);
  size_t needed = 0;
  do {
    if (needed > room.size()) room.resize(needed + 1024);
    check(ask(handle, room.data(), room.size(), &needed), "towline");
  } while (needed > room.size());
  return {room.data(), needed == 0 ? 0 : needed - 1};
}

// ---- plans

nb::object make_plan(nb::handle agent, nb::handle from, nb::handle to, nb::handle timeout, nb::handle backend,
                     nb::handle usual_bytes, bool recut) {
  auto* plan = new Plan;
  nb::object made = nb::cast(plan, nb::rv_policy::take_ownership);
  plan->agent = nb::borrow(agent);
  plan->from = nb::borrow(from);
  plan->to = nb::borrow(to);
  plan->timeout = timeout.is_none() ? 0 : std::max<uint64_t>(timeout_ns(timeout, 0), 1);
  towline_block_list_t* const source = nb::cast<BlockList&>(from).native;
  towline_block_list_t* const target = nb::cast<BlockList&>(to).native;
  plan->from_blocks = towline_block_list_blocks(source);
  plan->to_blocks = towline_block_list_blocks(target);
  check_writable(nb::cast<BlockList&>(to));
  TOWLINE_INIT(towline_plan_options_t, options);
  options.timeout_ns = plan->timeout;
  options.usual_bytes = unsigned_integer(usual_bytes, "usual_bytes");
  options.recut = recut ? 1 : 0;
  std::string its_backend;
  if (!backend.is_none()) {
    its_backend = bytes_of_text(backend, "backend");
    options.backend = its_backend.c_str();
  }
  int32_t status = 0;
  towline_plan_t* native = nullptr;
  {
    const AgentCall call(agent_of(agent));
    status = towline_plan_create(call.native(), source, target, &options, &native);
  }
  check(status, "towline_plan_create");
  plan->native = native;
  if ((towline_plan_streams(native) & TOWLINE_PLAN_NEEDS_STREAM) != 0) {
    plan->gpu = 0;
    for (const nb::handle list : {from, to}) {
      const BlockList& its_list = nb::cast<BlockList&>(list);
      if (its_list.peer.is_none() && its_list.gpu >= 0) plan->gpu = its_list.gpu;
    }
  }
  return made;
}

// Whether the post says nothing and goes in torch's current stream.
bool choose_stream(const Plan& plan, nb::handle stream, towline_post_options_t& options) {
  if (PyUnicode_Check(stream.ptr())) {
    if (PyUnicode_CompareWithASCIIString(stream.ptr(), "unordered") != 0)
      raise(TOWLINE_INVALID_ARGUMENT, "stream is a stream, or 'unordered'");
    options.stream_kind = TOWLINE_STREAM_UNORDERED;
    return false;
  }
  const nb::object chosen = stream.is_none() && plan.gpu >= 0 ? torch_stream(plan.gpu) : nb::borrow(stream);
  if (chosen.is_none()) return false;
  options.stream = stream_of(chosen);
  options.stream_kind = TOWLINE_STREAM_CUDA;
  return stream.is_none();
}

int32_t post_once(towline_plan_t* plan, const towline_post_options_t& options, uint64_t bytes,
                  towline_post_t** post) {
  if (bytes <= kQuickBytes) return towline_plan_post(plan, &options, post);
  const WithoutGil without_gil;
  return towline_plan_post(plan, &options, post);
}

// Posts, and waits while there is no credit unless an event loop runs here.
int32_t post_patiently(const Plan& plan, const towline_post_options_t& options, uint64_t bytes,
                       towline_post_t** post, bool in_loop) {
  Agent& agent = agent_of(plan.agent);
  const Deadline own(plan.timeout != 0 ? plan.timeout : agent.default_timeout);
  bool looked = false;
  uint32_t turns = 0;
  while (true) {
    const int32_t status = post_once(plan.native, options, bytes, post);
    if (status != TOWLINE_AGAIN) return status;
    if (options.queue != nullptr && !looked) {
      // The queue may be full because the application never awaited anything.
      looked = true;
      plan.agent.attr("_hub")().attr("look")();
      continue;
    }
    if (in_loop || own.passed()) return status;
    {
      const AgentCall call(agent);
      if (towline_agent_progress(call.native()) <= 0) back_off(turns);
    }
    check_signals();
  }
}

uint64_t block_bytes(const nb::object& list, uint64_t blocks) {
  return blocks == 0 ? 0 : towline_block_list_bytes(nb::cast<BlockList&>(list).native) / blocks;
}

// The native one of a towline.Group, which gives it to post().
Group& group_of(nb::handle given) {
  if (!nb::isinstance<Group>(given))
    raise(TOWLINE_INVALID_ARGUMENT, "group: a post joins a group by group.add(plan, ..) or group.copy(..)");
  return nb::cast<Group&>(given);
}

nb::object post(nb::handle self, nb::handle from, nb::handle to, nb::handle notice, nb::handle counter,
                nb::handle timeout, nb::handle priority, nb::handle stream, nb::handle group,
                nb::handle awaitable, nb::handle tag) {
  Plan& plan = nb::cast<Plan&>(self);
  const bool in_loop = in_event_loop();
  TOWLINE_INIT(towline_post_options_t, options);
  std::string its_notice;
  set_common(options, its_notice, notice, counter, timeout, priority, tag);
  const Picks sources(from, plan.from_blocks, "from");
  const Picks targets(to, plan.to_blocks, "to");
  if (sources.native() != nullptr) options.from = *sources.native();
  if (targets.native() != nullptr) options.to = *targets.native();
  const bool in_torchs_stream = choose_stream(plan, stream, options);
  if (!group.is_none()) options.group = group_of(group).native;
  auto* made = new Post;
  nb::object object = nb::cast(made, nb::rv_policy::take_ownership);
  made->plan = nb::borrow(self);
  made->awaitable =
      group.is_none() && (awaitable.is_none() ? in_loop : PyObject_IsTrue(awaitable.ptr()) == 1);
  made->in_group = !group.is_none();
  made->id = next_number();
  if (made->awaitable) options.queue = events_of(agent_of(plan.agent));
  options.user_data = user_data(made->id);
  const uint64_t count = sources.native() == nullptr ? plan.from_blocks : sources.count();
  const uint64_t bytes = count * block_bytes(plan.from, plan.from_blocks);
  const int32_t status = post_patiently(plan, options, bytes, &made->native, in_loop);
  if (status == TOWLINE_AGAIN)
    raise(status, "the peer gives no credit, or too many posts of the plan are in flight");
  // A refused member counts too.
  if (!group.is_none()) group_of(group).plans.append(self);
  if (status == TOWLINE_UNSUPPORTED && in_torchs_stream)
    raise(status, std::string(towline_last_error()) +
                      ": torch's current stream was taken. Synchronise it, and post with stream='unordered'");
  check(status, "towline_plan_post");
  made->bytes = bytes;
  made->ended = status == TOWLINE_OK;
  made->looked = made->ended;
  return object;
}

// ---- posts

nb::object result_object(const Post& post) {
  TOWLINE_INIT(towline_result_t, result);
  check(towline_post_result(post.native, &result), "towline_post_result");
  return make_result(result);
}

nb::object peer_of(const Plan& plan) {
  const BlockList& from = nb::cast<BlockList&>(plan.from);
  return from.peer.is_none() ? nb::cast<BlockList&>(plan.to).peer : from.peer;
}

nb::object route_of(const Plan& plan) {
  const std::string json = text_of(plan.native, towline_plan_route);
  return nb::module_::import_("json").attr("loads")(text(json.data(), json.size()));
}

// Raises a post's or group's exception with its fields. `plan`: the member's; null where no member failed.
[[noreturn]] void fail(int32_t status, const std::string& why, const Plan* plan, nb::object result) {
  const nb::object error = make_exception(status, why);
  if (plan != nullptr) {
    error.attr("peer") = peer_of(*plan);
    error.attr("backend") = route_of(*plan).attr("get")("backend");
  }
  error.attr("result") = std::move(result);
  raise(error);
}

[[noreturn]] void fail(const Post& post, int32_t status) {
  fail(status, text_of(post.native, towline_post_error), &nb::cast<Plan&>(post.plan), result_object(post));
}

int32_t found(Post& post, int32_t status) {
  post.looked = true;
  post.ended = status != TOWLINE_IN_PROGRESS;
  if (status < 0) fail(post, status);
  return status;
}

int32_t look(Post& post) {
  if (post.ended) return towline_post_poll(post.native);
  const WithoutGil without_gil;
  return towline_post_poll(post.native);
}

// Any of the two: `wait` is one call of the C API with a slice of the time.
template <class Wait>
int32_t wait_in_slices(const Deadline& deadline, int32_t goes_on, Wait&& wait) {
  while (true) {
    int32_t status = 0;
    {
      const WithoutGil without_gil;
      status = wait(deadline.signal_slice());
    }
    if (status != goes_on || deadline.passed()) return status;
    check_signals();
  }
}

[[noreturn]] void still_in_flight(const std::string& what) { raise_not_yet(what + " is still in flight"); }

void wait_out(Post& post, nb::handle timeout) {
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  post.looked = true;
  const int32_t status = wait_in_slices(
      deadline, TOWLINE_NOT_YET, [&](uint64_t slice) { return towline_post_wait(post.native, slice); });
  if (status == TOWLINE_NOT_YET) still_in_flight("a post of " + std::to_string(post.bytes) + " bytes");
  found(post, status);
}

nb::object result(Post& post, nb::handle timeout) {
  wait_out(post, timeout);
  return result_object(post);
}

// `holding`: the fences that hold.
[[noreturn]] void not_fenced(const std::string& what, uint32_t holding) {
  if ((holding & TOWLINE_FENCE_LOCAL) == 0) raise_not_yet(what + " is not fenced yet");
  raise_not_yet(
      what +
      " is not fenced at its peer yet: the peer has not confirmed that nothing of it can move there any "
      "more. The local memory may be reused (fences=\"local\")");
}

void wait_fenced(const Post& post, nb::handle fences, nb::handle timeout) {
  const uint32_t wanted = fences_of(fences);
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  const int32_t status = wait_in_slices(deadline, TOWLINE_NOT_YET, [&](uint64_t slice) {
    return towline_post_wait_fenced(post.native, wanted, slice);
  });
  if (status == TOWLINE_NOT_YET) {
    towline_result_t result = {};
    result.struct_size = sizeof result;
    check(towline_post_result(post.native, &result), "towline_post_result");
    not_fenced("a post of " + std::to_string(post.bytes) + " bytes", result.fences);
  }
  check(status, "towline_post_wait_fenced");
}

nb::str show(const Post& post) {
  TOWLINE_INIT(towline_result_t, result);
  (void)towline_post_result(post.native, &result);
  return nb::str("Post(nbytes={}, status={})").format(post.bytes, towline_status_name(result.status));
}

// ---- groups

nb::object make_group(nb::handle agent, nb::handle notice, nb::handle counter, nb::handle timeout,
                      nb::handle priority, nb::handle awaitable, nb::handle tag) {
  auto* group = new Group;
  nb::object made = nb::cast(group, nb::rv_policy::take_ownership);
  group->agent = nb::borrow(agent);
  group->awaitable = awaitable.is_none() ? in_event_loop() : PyObject_IsTrue(awaitable.ptr()) == 1;
  group->id = next_number();
  TOWLINE_INIT(towline_group_options_t, options);
  std::string its_notice;
  set_common(options, its_notice, notice, counter, timeout, priority, tag);
  if (group->awaitable) options.queue = events_of(agent_of(agent));
  options.user_data = user_data(group->id);
  int32_t status = 0;
  {
    const AgentCall call(agent_of(agent));
    status = towline_group_create(call.native(), &options, &group->native);
  }
  check(status, "towline_group_create");
  return made;
}

struct GroupResult : towline_group_result_t {};

GroupResult group_result(const Group& group) {
  GroupResult result{{sizeof(towline_group_result_t)}};
  check(towline_group_result(group.native, &result), "towline_group_result");
  return result;
}

// With the peer and backend of the first member that failed.
[[noreturn]] void fail(const Group& group, int32_t status) {
  const std::string why = text_of(group.native, towline_group_error);
  const GroupResult result = group_result(group);
  const bool known = result.failed_member < nb::len(group.plans);
  const nb::object plan =
      known ? nb::object(group.plans[static_cast<size_t>(result.failed_member)]) : nb::none();
  fail(status, why, known ? &nb::cast<Plan&>(plan) : nullptr, nb::cast(result));
}

nb::object close(const Group& group) {
  int32_t status = 0;
  {
    const WithoutGil without_gil;
    status = towline_group_close(group.native);
  }
  check(status, "towline_group_close");
  return status_object(status);
}

int32_t look(const Group& group) {
  const WithoutGil without_gil;
  return towline_group_poll(group.native);
}

nb::object poll(const Group& group) {
  const int32_t status = look(group);
  if (status < 0) fail(group, status);
  return status_object(status);
}

nb::object wait(const Group& group, nb::handle timeout) {
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  const int32_t status = wait_in_slices(
      deadline, TOWLINE_NOT_YET, [&](uint64_t slice) { return towline_group_wait(group.native, slice); });
  if (status == TOWLINE_NOT_YET) still_in_flight("a group");
  if (status < 0) fail(group, status);
  return status_object(status);
}

void wait_group_fenced(const Group& group, nb::handle fences, nb::handle timeout) {
  const uint32_t wanted = fences_of(fences);
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  const int32_t status = wait_in_slices(deadline, TOWLINE_NOT_YET, [&](uint64_t slice) {
    return towline_group_wait_fenced(group.native, wanted, slice);
  });
  if (status == TOWLINE_NOT_YET) {
    towline_group_result_t result = {};
    result.struct_size = sizeof result;
    check(towline_group_result(group.native, &result), "towline_group_result");
    not_fenced("a group", result.fences);
  }
  check(status, "towline_group_wait_fenced");
}

void cancel(const Group& group) {
  const WithoutGil without_gil;
  (void)towline_group_cancel(group.native);
}

void bind_posts(nb::module_& module) {
  Class<Post>(module, "Post", nb::type_slots(collected<Post>), nb::is_weak_referenceable())
      .def("poll", [](Post& post) { return status_object(found(post, look(post))); })
      .def("done", [](Post& post) { return look(post) != TOWLINE_IN_PROGRESS; })
      .def(
          "wait",
          [](Post& post, nb::handle timeout) {
            wait_out(post, timeout);
            return status_object(TOWLINE_OK);
          },
          nb::arg("timeout") = nb::none())
      .def("result", &result, nb::arg("timeout") = nb::none())
      .def("peek", &result_object)
      .def("wait_fenced", &wait_fenced, nb::arg("fences") = "both", nb::arg("timeout") = nb::none())
      .def("wait_fenced_async",
           [](nb::handle post, nb::args arguments, nb::kwargs keywords) {
             return coroutine("wait_fenced", post, std::move(arguments), std::move(keywords));
           })
      .def("_start_fence",
           [](const Post& post, nb::handle fences, uint64_t number) {
             const nb::object& agent = nb::cast<Plan&>(post.plan).agent;
             check(towline_post_fence_async(post.native, fences_of(fences), events_of(agent_of(agent)),
                                            user_data(number)),
                   "towline_post_fence_async");
           })
      .def("cancel",
           [](Post& post) {
             post.looked = true;
             const WithoutGil without_gil;
             (void)towline_post_cancel(post.native);
           })
      .def_ro("nbytes", &Post::bytes)
      .def_prop_ro("backend",
                   [](const Post& post) {
                     return text_of(static_cast<const towline_post_t*>(post.native), towline_post_backend);
                   })
      .def_ro("awaitable", &Post::awaitable)
      .def_ro("_looked", &Post::looked)
      .def_ro("_id", &Post::id)
      .def_prop_ro("_agent", [](const Post& post) { return nb::cast<Plan&>(post.plan).agent; })
      .def("_look",
           [](Post& post) {
             post.looked = true;
             return nb::int_(look(post));
           })
      .def("_result",
           [](Post& post) {
             found(post, look(post));
             return result_object(post);
           })
      .def("__await__", [](nb::handle self) { return awaiting("wait_post", self); })
      .def("__repr__", &show);
}

}  // namespace

uint32_t fences_of(nb::handle name) {
  static constexpr const char* kNames[] = {"", "local", "remote", "both"};
  for (uint32_t fences = 1; fences <= 3; ++fences)
    if (PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), kNames[fences]) == 0)
      return fences;
  raise(TOWLINE_INVALID_ARGUMENT, "fences is 'local', 'remote' or 'both'");
}

void bind_plan(nb::module_& module) {
  Class<Plan>(module, "Plan", nb::type_slots(collected<Plan>), nb::is_weak_referenceable())
      .def("__reduce__", &refuse_pickling)
      .def("post", &post, nb::arg("from_picks").none() = nb::none(), nb::arg("to_picks").none() = nb::none(),
           nb::kw_only(), nb::arg("notice").none() = nb::none(), nb::arg("counter").none() = nb::none(),
           nb::arg("timeout").none() = nb::none(), nb::arg("priority") = "bulk",
           nb::arg("stream").none() = nb::none(), nb::arg("group").none() = nb::none(),
           nb::arg("awaitable").none() = nb::none(), nb::arg("tag") = 0)
      .def("post_async",
           [](nb::handle self, nb::args arguments, nb::kwargs keywords) {
             return coroutine("post", self, std::move(arguments), std::move(keywords));
           })
      .def("route", &route_of)
      .def_prop_ro("backend", [](const Plan& plan) { return text_of(plan.native, towline_plan_backend); })
      .def_ro("_agent", &Plan::agent)
      .def_prop_ro("_peer", &peer_of)
      .def_ro("from_", &Plan::from)
      .def_ro("to", &Plan::to)
      .def("__repr__",
           [](const Plan& plan) { return nb::str("Plan({!r} -> {!r})").format(plan.from, plan.to); });
  bind_posts(module);
  Class<GroupResult>(module, "GroupResult")
      .def_prop_ro("status", [](const GroupResult& result) { return status_object(result.status); })
      .def_prop_ro("fenced_locally", [](const GroupResult& result) { return (result.fences & 1) != 0; })
      .def_prop_ro("fenced_remotely", [](const GroupResult& result) { return (result.fences & 2) != 0; })
      .def_ro("members", &GroupResult::members)
      .def_ro("nbytes", &GroupResult::bytes)
      .def_ro("total_nbytes", &GroupResult::total_bytes)
      .def_prop_ro("failed_member",
                   [](const GroupResult& result) -> nb::object {
                     if (result.failed_member == UINT64_MAX) return nb::none();
                     return nb::int_(result.failed_member);
                   })
      .def("__repr__", [](const GroupResult& result) {
        return nb::str("GroupResult(status={}, members={}, nbytes={} of {})")
            .format(towline_status_name(result.status), result.members, result.bytes, result.total_bytes);
      });
  Class<Group>(module, "_Group", nb::type_slots(collected<Group>), nb::is_weak_referenceable())
      .def("close", &close)
      .def("poll", &poll)
      .def("wait", &wait, nb::arg("timeout") = nb::none())
      .def("wait_fenced", &wait_group_fenced, nb::arg("fences") = "both", nb::arg("timeout") = nb::none())
      .def("cancel", &cancel)
      .def(
          "set_limit",
          [](const Group& group, uint64_t bytes_per_s) {
            check(towline_group_set_limit(group.native, bytes_per_s), "towline_group_set_limit");
          },
          nb::arg("bytes_per_s"))
      .def_prop_ro("result", &group_result)
      .def("_start_fence",
           [](const Group& group, nb::handle fences, uint64_t number) {
             check(towline_group_fence_async(group.native, fences_of(fences),
                                             events_of(agent_of(group.agent)), user_data(number)),
                   "towline_group_fence_async");
           })
      .def_ro("awaitable", &Group::awaitable)
      .def_ro("_id", &Group::id)
      .def_ro("_agent", &Group::agent)
      .def("_look", [](const Group& group) { return nb::int_(look(group)); });
  define(module, "_plan", &make_plan, nb::arg("agent"), nb::arg("from"), nb::arg("to"),
         nb::arg("timeout").none(), nb::arg("backend").none(), nb::arg("usual_bytes"), nb::arg("recut"));
  define(module, "_make_group", &make_group, nb::arg("agent"), nb::arg("notice").none(),
         nb::arg("counter").none(), nb::arg("timeout").none(), nb::arg("priority"),
         nb::arg("awaitable").none(), nb::arg("tag"));
}

}  // namespace towline::python
