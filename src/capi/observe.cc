// C API: the application's log, and hooks around operations.
#include "towline/observe.h"

#include <pthread.h>

#include <mutex>
#include <new>

#include "agent/agent.h"
#include "base/log.h"
#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

namespace {

struct ApplicationSink {
  towline_log_sink_t function = nullptr;
  void* context = nullptr;
};

// Changed only while the library's sink is not this one.
ApplicationSink application_sink;
// Held by the thread that changes it, which a forked child does not have.
std::mutex changes;

void pass_on(void*, LogLevel level, std::string_view message) {
  const std::string text(message);  // with an end
  application_sink.function(application_sink.context, static_cast<uint32_t>(level), text.c_str(),
                            text.size());
}

}  // namespace

extern "C" {

void towline_set_log_sink(towline_log_sink_t sink, void* context) {
  [[maybe_unused]] static const int watched =
      ::pthread_atfork(nullptr, nullptr, [] { new (&changes) std::mutex; });
  const std::lock_guard lock(changes);
  set_log_sink(nullptr, nullptr);
  application_sink = {sink, context};
  if (sink != nullptr) set_log_sink(pass_on, nullptr);
}

int32_t towline_agent_set_hooks(towline_agent_t* agent, const towline_hooks_t* hooks) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    agent->agent->check_usable();
    if (hooks == nullptr) {
      agent->agent->set_hooks(nullptr);
    } else {
      const towline_hooks_t given = capi::take_options(hooks, "hooks");
      agent->agent->set_hooks(&given);
    }
    return Status::kOk;
  });
}

}  // extern "C"
