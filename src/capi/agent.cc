// C API: status texts, agents, completions.
#include <thread>

#include "agent/own_thread.h"
#include "base/config/config_file.h"
#include "base/per_thread.h"
#include "base/sync/wake_path.h"
#include "capi/handles.h"

namespace towline::capi {

namespace {
thread_local constinit ThreadText last_error;
}

int32_t refuse(Status code, std::string text) noexcept {
  last_error.keep(std::move(text));
  return static_cast<int32_t>(code);
}

int32_t refuse(const char* function, Status code, const char* why) noexcept {
  try {
    return refuse(code, fmt::format("{}: {}", function, why));
  } catch (const std::bad_alloc&) {
    last_error.set("out of memory");
    return static_cast<int32_t>(code);
  }
}

int32_t refuse(const char* function, const std::system_error& error) noexcept {
  if (error.code() != std::errc::resource_unavailable_try_again)
    return refuse(function, Status::kInternal, error.what());
  return refuse(function, Status::kLimitExceeded,
                "the system gives no more threads: ulimit -u and the cgroup's pids.max limit them");
}

void fail_null(const char* what) { fail(Status::kInvalidArgument, "{} is null", what); }

int32_t refuse_null(const char* function, const char* what) noexcept {
  try {
    return refuse(Status::kInvalidArgument, fmt::format("{}: {} is null", function, what));
  } catch (const std::bad_alloc&) {
    return refuse(function, Status::kInvalidArgument, "a pointer is null");
  }
}

int32_t answer_error(const char* function, Status status, const std::string& why) noexcept {
  if (status == Status::kAgain || status == Status::kNotYet) return static_cast<int32_t>(status);
  return refuse(function, status, why.empty() ? status_text(status) : why.c_str());
}

Status give(const void* data, size_t bytes, bool text, void* out, size_t capacity, size_t* needed) {
  const size_t whole = bytes + (text ? 1 : 0);
  if (needed != nullptr) *needed = whole;
  if (needed == nullptr && capacity < whole)
    fail(Status::kNoSpace, "{} bytes are needed, {} were given", whole, capacity);
  if (out == nullptr || capacity == 0) return Status::kOk;
  const size_t room = text ? capacity - 1 : capacity;
  std::memcpy(out, data, std::min(bytes, room));
  if (text) static_cast<char*>(out)[std::min(bytes, room)] = 0;
  return Status::kOk;
}

namespace {

AgentOptions agent_options(const char* name, const towline_agent_options_t& given) {
  AgentOptions options;
  options.name = name;
  options.config = Config::from_process();
  if (given.config != nullptr) {
    for (const auto& [key, value] : parse_config_file(given.config, "options.config")) {
      options.config.set(key, value.text);
    }
  }
  if (given.progress > TOWLINE_PROGRESS_CALLER) {
    fail(Status::kInvalidArgument, "options.progress is {}; it is TOWLINE_PROGRESS_HOSTED or _CALLER",
         given.progress);
  }
  options.hosted = given.progress == TOWLINE_PROGRESS_HOSTED;
  options.workers =
      given.workers != 0 ? given.workers : static_cast<uint32_t>(options.config.get_u64("workers", 1, 1, 8));
  options.listen =
      given.listen != nullptr ? given.listen : options.config.get_string("listen", kDefaultListen);
  options.advertise = given.advertise != nullptr ? given.advertise : options.config.get_string("advertise");
  if (given.backends != nullptr) options.config.set("backends", given.backends);
  options.backends = options.config.get_list("backends");
  if (given.default_timeout_ns != 0) options.default_timeout_ns = given.default_timeout_ns;
  return options;
}

}  // namespace
}  // namespace towline::capi

using namespace towline;  // NOLINT: C entry points

extern "C" {

const char* towline_status_text(int32_t status) { return status_text(static_cast<Status>(status)); }
const char* towline_status_name(int32_t status) { return status_name(static_cast<Status>(status)); }
const char* towline_version(void) { return "0.1.0"; }
const char* towline_last_error(void) { return capi::last_error.c_str(); }

int32_t towline_agent_create(const char* name, const towline_agent_options_t* options,
                             towline_agent_t** agent) {
  return capi::guard(__func__, [&] {
    capi::need(name, "name");
    capi::need(agent, "agent");
    const auto given = capi::take_options(options, "options");
    auto made = Agent::create(capi::agent_options(name, given));
    std::unique_ptr<Exporter> exporter;
    const std::string address = made->config().get_string("telemetry.prometheus");
    if (!address.empty()) exporter = std::make_unique<Exporter>(made->config(), made.get(), address);
    *agent = new towline_agent{made, std::make_shared<DirectoryHost>(made), std::move(exporter)};
    return Status::kOk;
  });
}

int32_t towline_agent_close(towline_agent_t* agent) {
  return capi::guard(__func__, [&] {
    if (agent == nullptr) return Status::kOk;
    if (agent->agent->usable() == Status::kForked) {
      fail(Status::kForked, "the agent belongs to the parent of this forked process");
    }
    if (OwnThread::is_of(agent->agent.get()))
      fail(Status::kBusy,
           "agent '{}' can't be closed in a callback on a thread of its own, or on the one that closes it: "
           "destroy it, or close it on another thread",
           agent->agent->name());
    const std::lock_guard lock(agent->closing);
    const OwnThread mark(agent->agent.get());
    agent->exporter.reset();
    agent->directories->close();
    agent->agent->close();
    return Status::kOk;
  });
}

int32_t towline_agent_destroy(towline_agent_t* agent) {
  if (agent != nullptr && OwnThread::is_of(agent->agent.get())) {
    return capi::guard(__func__, [&] {
      std::thread([agent] { (void)towline_agent_destroy(agent); }).detach();
      return Status::kInProgress;
    });
  }
  const int32_t status = towline_agent_close(agent);
  if (status == TOWLINE_OK) delete agent;
  return status;
}

const char* towline_agent_name(const towline_agent_t* agent) {
  return agent == nullptr ? "" : agent->agent->name().c_str();
}
const char* towline_agent_incarnation(const towline_agent_t* agent) {
  return agent == nullptr ? "" : agent->agent->incarnation_text().c_str();
}

int32_t towline_agent_progress(towline_agent_t* agent) {
  if (agent == nullptr) return capi::refuse_null(__func__, "agent");
  if (const Status status = agent->agent->usable(); status != Status::kOk)
    return capi::answer(__func__, status);
  return static_cast<int32_t>(std::min<uint32_t>(agent->agent->progress(), INT32_MAX));
}

int32_t towline_agent_event_fd(towline_agent_t* agent, int* fd) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(fd, "fd");
    agent->agent->check_usable();
    *fd = agent->agent->own_queue().event_fd();
    return Status::kOk;
  });
}

TOWLINE_WAKE_PATH int32_t towline_agent_wait(towline_agent_t* agent, uint64_t timeout_ns) {
  if (agent == nullptr) return capi::refuse_null(__func__, "agent");
  return capi::answer(__func__, agent->agent->wait_event(agent->agent->own_queue(), timeout_ns));
}

int32_t towline_agent_address(const towline_agent_t* agent, char* text, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    const std::string address = agent->agent->address();
    return capi::give(address.data(), address.size(), true, text, capacity, needed);
  });
}

int32_t towline_agent_info(towline_agent_t* agent, char* json, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    const std::string text = agent->agent->info();
    return capi::give(text.data(), text.size(), true, json, capacity, needed);
  });
}

int32_t towline_agent_add_backend(towline_agent_t* agent, const char* plugin) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(plugin, "plugin");
    agent->agent->add_backend(plugin);
    return Status::kOk;
  });
}

int32_t towline_agent_metrics(towline_agent_t* agent, char* json, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    const std::string text = agent->agent->metrics_json();
    return capi::give(text.data(), text.size(), true, json, capacity, needed);
  });
}

int32_t towline_completions_pull(towline_agent_t* agent, towline_completion_t* completions, size_t capacity,
                                 size_t completion_bytes) {
  if (agent == nullptr) return capi::refuse_null(__func__, "agent");
  if (completions == nullptr && capacity != 0) return capi::refuse_null(__func__, "completions");
  if (completion_bytes < capi::kLeastCompletionBytes || completion_bytes > capi::kMostElementBytes)
    return capi::refuse(__func__, Status::kInvalidArgument,
                        "completion_bytes: give sizeof(towline_completion_t)");
  if (const Status status = agent->agent->usable(); status == Status::kForked)
    return capi::answer(__func__, status);
  capacity = std::min<size_t>(capacity, INT32_MAX);
  if (completion_bytes == sizeof *completions) [[likely]]
    return static_cast<int32_t>(agent->agent->pull_completions(completions, capacity));
  size_t count = 0;
  for (towline_completion_t one; count < capacity && agent->agent->pull_completions(&one, 1) == 1; ++count)
    capi::give_element(completions, completion_bytes, count, one);
  return static_cast<int32_t>(count);
}

}  // extern "C"
