// The cuda transport over fake GPUs, as a plugin for tests; and the function by which tests command the GPUs.
#include <cstdint>
#include <cstring>

#include "gpu/fake/fake_device.h"
#include "towline/export.h"
#include "transports/cuda/backend.h"
#include "transports/cuda/plugin.h"

namespace {

class FakeBackend : public towline::cuda::Backend {
 public:
  static constexpr const towline_landing_table_v1* kLanding =
      &towline::cuda::LandingTable<FakeBackend>::kTable;

  explicit FakeBackend(const towline::plugin::Host& host)
      : Backend(host, towline::cuda::fake::fake_device()) {}
};

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_plugin_v1_t plugin =
      towline::cuda::describe_plugin<FakeBackend>([](char*, size_t) -> int32_t { return TOWLINE_OK; });
  return number == 0 ? &plugin : nullptr;
}

// False: no such command; "held": no launch waits to be let go; "busy": all that queues were given is carried out;
// "pinned": the host memory there is not; "pinning": none waits to be let go; "gathered": less than so much was;
// "exported", "unpinned": another number of times; "loaded": kernels of that GPU were not.
extern "C" TOWLINE_API bool towline_fake_gpu(const char* command, uint64_t a, uint64_t b, uint64_t c) {
  towline::cuda::fake::Faults& faults = towline::cuda::fake::faults();
  const auto is = [command](const char* name) { return std::strcmp(command, name) == 0; };
  if (is("hold"))
    faults.launches.hold(a != 0);
  else if (is("let others pass"))
    faults.launches.let_others_pass();
  else if (is("held"))
    return faults.launches.waited_for();
  else if (is("busy"))
    return faults.queued != 0;
  else if (is("refuse"))
    faults.refuse_launches(static_cast<uint32_t>(a), static_cast<towline::cuda::Code>(b));
  else if (is("refuse behind valves"))
    faults.refuse_behind_valves(static_cast<uint32_t>(a), static_cast<towline::cuda::Code>(b));
  else if (is("break"))
    faults.break_next(static_cast<towline::cuda::Code>(a));
  else if (is("forget"))
    faults.forget(a, b);
  else if (is("place"))
    faults.place(a, b, static_cast<uint32_t>(c));
  else if (is("make plain"))
    faults.make(a, b, towline::cuda::Made::kPlain, std::nullopt);
  else if (is("make mapped"))
    faults.make(a, b, towline::cuda::Made::kMapped, std::nullopt);
  else if (is("make pool"))
    faults.make(a, b, towline::cuda::Made::kPool, std::nullopt);
  else if (is("make readable"))
    faults.make(a, b, towline::cuda::Made::kMapped, towline::cuda::Use::kRead);
  else if (is("full"))
    faults.fill(a != 0);
  else if (is("hold lists"))
    faults.lists.hold(a != 0);
  else if (is("gathered"))
    return faults.gathered() >= a;
  else if (is("loaded"))
    return faults.loaded(static_cast<uint32_t>(a));
  else if (is("exported"))
    return faults.exports() == a;
  else if (is("unpinned"))
    return faults.unpinned() == a;
  else if (is("unpinning waits"))
    faults.let_unpinning_wait(a != 0);
  else if (is("pinned"))
    return towline::cuda::fake::fake_device().find_pinned(a, 1) != nullptr;
  else if (is("pinning"))
    return faults.pins.waited_for();
  else if (is("hold pins"))
    faults.pins.hold(a != 0);
  else if (is("refuse pins"))
    faults.refuse_pins(a != 0);
  else if (is("refuse pools"))
    faults.refuse_pools(a != 0);
  else if (is("refuse streams"))
    faults.refuse_streams(static_cast<uint32_t>(a));
  else if (is("refuse dma"))
    faults.refuse_dma(a != 0);
  else if (is("pin for reading"))
    faults.pin_for_reading(a, b);
  else if (is("separate"))
    faults.separate(a != 0);
  else if (is("by hand"))
    faults.by_hand(a != 0);
  else if (is("step"))
    return towline::cuda::fake::step(a);
  else if (is("reset"))
    faults.reset();
  else
    return false;
  return true;
}

// A stream, made by "make" with a GPU; the answer is what the command gives, or 0.
extern "C" TOWLINE_API uint64_t towline_fake_stream(const char* command, void* stream, uint64_t a, uint64_t b,
                                                    uint64_t c) {
  using towline::cuda::fake::FakeStream;
  auto* const mine = static_cast<FakeStream*>(stream);
  const auto is = [command](const char* name) { return std::strcmp(command, name) == 0; };
  if (is("make")) return reinterpret_cast<uint64_t>(new FakeStream(static_cast<uint32_t>(a)));
  if (is("free")) delete mine;
  if (is("hold")) mine->hold(a != 0);
  if (is("drain")) mine->drain();
  if (is("record")) mine->record();
  if (is("end")) return reinterpret_cast<uint64_t>(mine->end_record());
  if (is("replay")) mine->replay(*reinterpret_cast<FakeStream::Graph*>(a));
  if (is("free graph")) delete reinterpret_cast<FakeStream::Graph*>(a);
  if (is("copy"))
    mine->put([=] { std::memcpy(reinterpret_cast<void*>(a), reinterpret_cast<const void*>(b), c); });
  return 0;
}
