#include "transports/rdma/plugin.h"

#include "base/clock.h"
#include "towline/plugin/backend.hpp"
#include "transports/rdma/backend.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {move(kReadAndWrite, kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM),
                                           kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM),
                                           TOWLINE_WHERE_ANY_HOST)};

// Which rails there are depends on the settings: opening it tells.
int32_t usable(char*, size_t) { return TOWLINE_OK; }

template <const towline::rdma::Flavour& kFlavour>
class Flavoured : public towline::rdma::Backend {
 public:
  explicit Flavoured(const Host& host) : Backend(host, kFlavour) {}
};

template <const towline::rdma::Flavour& kFlavour>
towline_plugin_v1_t describe_as(const char* text, uint32_t cost) {
  return describe<Flavoured<kFlavour>>(
      {.name = kFlavour.name,
       .version = "0.1.0",
       .text = text,
       .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_TELLS_GRANTS,
       .moves = kMoves,
       .cost = cost,
       .worst_fence_ns = 10 * towline::kSecondNs,
       .fence_reason = "completions, or the end of the rails' connections at both sides"},
      usable);
}

}  // namespace

const towline_plugin_v1_t* towline_rdma_plugin() {
  static const towline_plugin_v1_t plugin =
      describe_as<towline::rdma::kRdma>("RDMA over every rail of this host: verbs, libfabric", 50);
  return &plugin;
}

const towline_plugin_v1_t* towline_ucx_plugin() {
  static const towline_plugin_v1_t plugin =
      describe_as<towline::rdma::kUcx>("UCX, by whatever transports it has to a peer", 60);
  return &plugin;
}

const towline_plugin_v1_t* towline_libfabric_plugin() {
  static const towline_plugin_v1_t plugin =
      describe_as<towline::rdma::kLibfabric>("libfabric: EFA, or one of its other providers", 55);
  return &plugin;
}
