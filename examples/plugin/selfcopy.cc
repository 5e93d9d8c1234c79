// A whole backend outside the library: it reaches only the agent that loads it, by copying. It shows the
// shape every backend has: a class for the backend, one for its connections, one line that makes a plugin of
// them.
//
//   c++ -std=c++20 -shared -fPIC selfcopy.cc -o selfcopy.so $(pkg-config --cflags towline)
//   TOWLINE_PLUGINS=/path/to/selfcopy.so towline info
#include <towline/towline.h>
#include <towline/plugin/backend.hpp>
#include <towline/plugin/cursor.hpp>

#include <cstring>

namespace {

using towline::Status;
namespace plugin = towline::plugin;

class SelfBackend;

// Begins with what the core knows of it; the rest is ours.
struct SelfPrepared : plugin::PreparedBase {
  uint32_t op = TOWLINE_WRITE;
};

class SelfConnection {
 public:
  SelfConnection(const plugin::Host& host, void* peer) : host_(host), peer_(peer) {}

  const plugin::Host& host() const { return host_; }

  int32_t import(const towline_region_args& args, const void*, size_t, towline_import** import,
                 char how[64]) {
    if ((args.region.flags & TOWLINE_REGION_GUARDED) != 0) {
      return host_.refuse(Status::kUnsupported, "guarded regions need an owner that checks");
    }
    *import = reinterpret_cast<towline_import*>(this);  // our own memory: nothing to remember
    std::strncpy(how, "own memory", 64);
    return TOWLINE_OK;
  }
  void unimport(towline_import*) noexcept {}

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared) {
    auto* made = new SelfPrepared;
    made->flags = TOWLINE_PREPARED_CONCURRENT | TOWLINE_PREPARED_IMMEDIATE;
    made->connection = reinterpret_cast<towline_connection*>(this);
    made->plan = args.plan;
    made->op = args.op;
    *prepared = made;
    return TOWLINE_OK;
  }
  static void unprepare(towline_prepared* prepared) noexcept { delete static_cast<SelfPrepared*>(prepared); }

  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    const auto* mine = static_cast<const SelfPrepared*>(prepared);
    plugin::Cursor cursor(*mine->plan, args.begin, args.end);
    towline_segment segments[64];
    while (const size_t count = cursor.next(segments, 64, UINT64_MAX)) {
      for (size_t i = 0; i < count; ++i) {
        auto* local = reinterpret_cast<void*>(segments[i].local);
        auto* remote = reinterpret_cast<void*>(segments[i].remote);
        std::memmove(mine->op == TOWLINE_WRITE ? remote : local, mine->op == TOWLINE_WRITE ? local : remote,
                     segments[i].length);
      }
    }
    auto* connection = reinterpret_cast<SelfConnection*>(mine->connection);
    return args.message_bytes == 0 ? TOWLINE_OK : connection->send(args.message, args.message_bytes);
  }

  int32_t send(const void* message, size_t bytes) noexcept {
    host_.message(peer_, message, bytes);
    return TOWLINE_OK;
  }
  void cancel(uint64_t) noexcept {}  // nothing is ever in flight
  void disconnect() noexcept { delete this; }
  std::string describe() const { return R"({"transport": "selfcopy"})"; }

 private:
  plugin::Host host_;
  void* peer_;
};

class SelfBackend : public plugin::BackendBase {
 public:
  using Connection = SelfConnection;
  using BackendBase::BackendBase;

  int32_t add(const towline_region_args&, towline_registration** registration, void*, size_t* token_bytes) {
    *registration = reinterpret_cast<towline_registration*>(this);
    *token_bytes = 0;
    return TOWLINE_OK;
  }
  void remove(towline_registration*) noexcept {}

  // The address is the incarnation: only the agent itself can have it.
  int32_t address(void* address, size_t* bytes) {
    std::memcpy(address, host().self().incarnation, 16);
    *bytes = 16;
    return TOWLINE_OK;
  }
  int32_t probe(const towline_identity& peer, const void*, size_t) {
    if (std::memcmp(peer.incarnation, host().self().incarnation, 16) == 0) return TOWLINE_OK;
    return host().refuse(Status::kUnreachable, "it reaches no agent but this one");
  }
  int32_t connect(uint32_t, const towline_identity&, const void*, size_t, uint64_t, void* peer,
                  SelfConnection** out) {
    *out = new SelfConnection(host(), peer);
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

extern "C" __attribute__((visibility("default"))) const towline_plugin_v1_t* towline_plugin_v1(
    uint32_t number) {
  static const towline_plugin_v1_t described =
      plugin::describe<SelfBackend>({"selfcopy", "1.0", "an example: copies within one agent",
                                     TOWLINE_TRAIT_ONE_SIDED, kMoves, 5, 0, "done when submit returns"},
                                    usable);
  return number == 0 ? &described : nullptr;
}
