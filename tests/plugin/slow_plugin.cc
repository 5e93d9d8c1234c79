// A backend that reaches only the agent that loads it, whose `add` and whose import take as long as the test says:
// the first blocks, the second gives what blocks to the host.
#include <towline/plugin/backend.hpp>
#include <towline/plugin/cursor.hpp>

#include <cstring>
#include <memory>

#include "slow_plugin.h"

namespace {

using towline::Status;
namespace plugin = towline::plugin;

SlowHold hold;

// Until the test lets it go.
void wait_at(uint32_t step) {
  uint32_t held = hold.held.load();
  if ((held & step) == 0) return;
  hold.inside.fetch_or(step);
  for (; (held & step) != 0; held = hold.held.load()) hold.held.wait(held);
  hold.inside.fetch_and(~step);
}

struct SlowImport {
  std::shared_ptr<std::atomic<bool>> done = std::make_shared<std::atomic<bool>>(false);
  bool started = false;
};

struct SlowPrepared : plugin::PreparedBase {
  uint32_t op = TOWLINE_WRITE;
};

class SlowConnection {
 public:
  SlowConnection(const plugin::Host& host, void* peer) : host_(host), peer_(peer) {}
  const plugin::Host& host() const { return host_; }

  int32_t import(const towline_region_args&, const void*, size_t, towline_import** import, char how[64]) {
    if (*import == nullptr) *import = reinterpret_cast<towline_import*>(new SlowImport);
    auto& mine = *reinterpret_cast<SlowImport*>(*import);
    if (!mine.started) {
      const auto work = [](void* argument) {
        const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> done(
            static_cast<std::shared_ptr<std::atomic<bool>>*>(argument));
        wait_at(kSlowImport);
        (*done)->store(true);
      };
      auto done = std::make_unique<std::shared_ptr<std::atomic<bool>>>(mine.done);
      const Status status = host_.run(0, work, done.get());
      if (status == Status::kOk) {
        (void)done.release();
        mine.started = true;
      } else if (status != Status::kAgain) {
        return static_cast<int32_t>(status);
      }
    }
    if (!mine.done->load()) return TOWLINE_AGAIN;
    std::strncpy(how, "own memory, after a while", 64);
    return TOWLINE_OK;
  }
  void unimport(towline_import* import) noexcept { delete reinterpret_cast<SlowImport*>(import); }

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared) {
    auto* made = new SlowPrepared;
    made->connection = reinterpret_cast<towline_connection*>(this);
    made->plan = args.plan;
    made->op = args.op;
    *prepared = made;
    return TOWLINE_OK;
  }
  static void unprepare(towline_prepared* prepared) noexcept { delete static_cast<SlowPrepared*>(prepared); }

  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    const auto* mine = static_cast<const SlowPrepared*>(prepared);
    plugin::Cursor cursor(*mine->plan, args.begin, args.end);
    towline_segment segments[64];
    while (const size_t count = cursor.next(segments, 64, UINT64_MAX)) {
      for (size_t i = 0; i < count; ++i) {
        auto* local = reinterpret_cast<void*>(segments[i].local);
        auto* remote = reinterpret_cast<void*>(segments[i].remote);
        const bool write = mine->op == TOWLINE_WRITE;
        std::memmove(write ? remote : local, write ? local : remote, segments[i].length);
      }
    }
    auto* connection = reinterpret_cast<SlowConnection*>(mine->connection);
    return args.message_bytes == 0 ? TOWLINE_OK : connection->send(args.message, args.message_bytes);
  }
  int32_t send(const void* message, size_t bytes) noexcept {
    host_.message(peer_, message, bytes);
    return TOWLINE_OK;
  }
  void cancel(uint64_t) noexcept {}
  void disconnect() noexcept { delete this; }
  std::string describe() const { return "{}"; }

 private:
  plugin::Host host_;
  void* peer_;
};

class SlowBackend : public plugin::BackendBase {
 public:
  using Connection = SlowConnection;
  using BackendBase::BackendBase;

  int32_t add(const towline_region_args&, towline_registration** registration, void*, size_t* token_bytes) {
    wait_at(kSlowAdd);
    *registration = reinterpret_cast<towline_registration*>(this);
    *token_bytes = 0;
    return TOWLINE_OK;
  }
  void remove(towline_registration*) noexcept {}
  int32_t address(void* address, size_t* bytes) {
    std::memcpy(address, host().self().incarnation, 16);
    *bytes = 16;
    return TOWLINE_OK;
  }
  int32_t probe(const towline_identity& peer, const void*, size_t) {
    const bool self = std::memcmp(peer.incarnation, host().self().incarnation, 16) == 0;
    return self ? TOWLINE_OK : host().refuse(Status::kUnreachable, "it reaches no agent but this one");
  }
  int32_t connect(uint32_t, const towline_identity&, const void*, size_t, uint64_t, void* peer,
                  SlowConnection** out) {
    *out = new SlowConnection(host(), peer);
    host().connection_event(peer, TOWLINE_CONNECTION_UP, Status::kOk, "");
    return TOWLINE_OK;
  }
  uint32_t progress(uint32_t, uint64_t) noexcept { return 0; }
  bool arm(uint32_t) noexcept { return false; }
  void disarm(uint32_t) noexcept {}
};

int32_t usable(char*, size_t) { return TOWLINE_OK; }

constexpr towline_move_v1 kMoves[] = {plugin::move(plugin::kReadAndWrite, plugin::kinds(TOWLINE_MEMORY_DRAM),
                                                   plugin::kinds(TOWLINE_MEMORY_DRAM),
                                                   TOWLINE_WHERE_SAME_PROCESS)};

}  // namespace

extern "C" __attribute__((visibility("default"))) SlowHold* slow_hold() { return &hold; }

// Here, since the standard library wakes those alone that wait in the same library.
extern "C" __attribute__((visibility("default"))) void slow_let_go() {
  hold.held = 0;
  hold.held.notify_all();
}

extern "C" __attribute__((visibility("default"))) const towline_plugin_v1_t* towline_plugin_v1(
    uint32_t number) {
  static const towline_plugin_v1_t described =
      plugin::describe<SlowBackend>({"slow", "1.0", "for tests: takes its time", TOWLINE_TRAIT_ONE_SIDED,
                                     kMoves, 90, 0, "done when submit returns"},
                                    usable);
  return number == 0 ? &described : nullptr;
}
